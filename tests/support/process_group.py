"""A process and all that it starts, in a group of its own: what it says is kept, and nothing of it stays."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For those that live for a minute: the better compiler, or a collector with threads, would cost more than it
saves. Nor is Spark's own bytecode verified, which took a fifteenth of the time of two files of its tests."""
_LAST_SECONDS = 20.0


class ProcessGroup:
    """`brokers` with these words, at once."""

    program: Sequence[str] = (sys.executable, "-m", "brokers")

    def __init__(self, words: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            env=os.environ | {"JAVA_TOOL_OPTIONS": QUICK_JVM} | dict(environ or {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """The last of it."""
        return "".join(self.lines[-60:])

    def below(self, name: str = "") -> list[int]:
        """The processes that it has started whose command line has `name`."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                ours = os.getpgid(int(entry.name)) == self.process.pid
                command = (entry / "cmdline").read_bytes()
                if ours and command and name.encode() in command:  # one that has ended has none
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def kill_below(self, name: str) -> int:
        """SIGKILL those; how many there were."""
        meant = self.below(name)
        for pid in meant:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return len(meant)

    def signal_all(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, patience_seconds: float) -> int:
        """However it goes on, it ends within that, and nothing of it stays. Its exit code."""
        try:
            code = self.process.wait(patience_seconds)
            give_up = time.monotonic() + _LAST_SECONDS
            while self.below() and time.monotonic() < give_up:
                time.sleep(0.05)
        finally:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line)
