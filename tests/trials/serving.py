"""The server under trial, as a process: the real one, with a planted bug or without."""

import resource
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.server import NotReadyError, Server


class TrialServer(Server):
    """The data folder may be elsewhere than the ready file.

    It is set as users have it, but for what a trial's own settings say.
    """

    defaults: Mapping[str, str] = {}

    def __init__(self, folder: Path, data: Path, *arguments: str, bug: str = "") -> None:
        super().__init__(folder, *arguments, data=data, bug=bug)

    def begin(self) -> None:
        """Start and wait until it is ready. Raises NotReadyError."""
        self.ready_file.unlink(missing_ok=True)  # a killed process left its own
        self.start()

    def begin_and_kill(
        self,
        seconds: float,
        *,
        after_lock: bool,
        before_kill: Callable[[], None] = lambda: None,
    ) -> bool:
        """Start, and kill so many seconds later; returns whether that was before it was ready.

        The seconds count from the process's start, or from when it has locked the data folder and recovers.
        Raises NotReadyError where it ended by itself.
        """
        before = self.process
        killed, over = threading.Event(), threading.Event()

        def kill() -> None:
            while self.process is before or self.process is None:
                time.sleep(0.0005)
            process = self.process
            while after_lock and not (self._locked_by(process.pid) or over.is_set()):
                time.sleep(0.0005)
            time.sleep(seconds)
            killed.set()
            before_kill()
            process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self.begin()
            early = False
        except NotReadyError:
            if not killed.is_set():
                raise
            early = True
        finally:
            over.set()
            killer.join()
        self.wait()
        return early

    def limit_files(self, size: int | None) -> None:
        """From now on none of its files grows beyond that (EFBIG), as under `ulimit -f`; None: no limit."""
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _locked_by(self, pid: int) -> bool:
        try:
            return (self.data / "LOCK").read_bytes() == b"%d\n" % pid
        except OSError:
            return False
