"""Password hashing: in threads, or, for addresses that fail often, in a process of the lowest priority.

A usual login is answered soon, however busy the machine is. In a flood of failing logins, threads would take
a processor from the loop and from clients. So those go to a process that runs only while no other wants the
processor. A thread of low priority would not do: it could stop the loop by holding the interpreter's lock.

The process is started when needed and ended after idle minutes. If it cannot start, dies or gets no
processor, threads do its work for a minute.
"""

import math
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import attrs
import structlog
import trio

from brokers.access import hasher
from shared import access
from shared.access import KEY_BYTES, Secret
from shared.storage.threads import Threads

AT_ONCE = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Passwords that threads hash at a time; each takes about 50 ms of a processor, and 16 MiB."""
PATIENCE_SECONDS = 1.0
"""A process that does not answer in time is ended: the machine leaves it no processor."""
IDLE_SECONDS = 300.0
"""A process without work for so long is ended."""
IN_THREADS_SECONDS = 60.0
"""How long threads take over from a process that failed."""
COMMAND = (sys.executable, "-S", "-E", "-I", str(Path(hasher.__file__)))

logger = structlog.stdlib.get_logger("brokers.net")


@attrs.define(eq=False)
class _Hasher:
    process: trio.Process
    alive: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The process is ended when this is cancelled, or at its deadline."""

    async def key(self, secret: Secret, password: bytes) -> bytes:
        """The key of a password with the secret's salt. Raises OSError if the process has ended."""
        cost = access.SCRYPT_N, access.SCRYPT_R, access.SCRYPT_P
        head = hasher.ASKED.pack(*cost, KEY_BYTES, len(secret.salt), len(password))
        pipes, found = self.process.stdio, b""
        assert pipes is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await pipes.send_all(head + secret.salt + password)
            while len(found) < KEY_BYTES and (data := await pipes.receive_some(KEY_BYTES)):
                found += data
        if len(found) < KEY_BYTES:
            raise OSError(f"it has ended with status {await self.process.wait()}")
        return found


class Hashing:
    """Compares passwords with secrets, a few at a time."""

    def __init__(
        self, command: tuple[str, ...] = COMMAND, in_thread: Callable[..., Awaitable[Any]] | None = None
    ) -> None:
        self._command = command
        self._in_thread = in_thread or Threads()
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._nursery: trio.Nursery | None = None
        self._hasher: _Hasher | None = None
        self._in_threads_until = -math.inf

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the process until cancelled. While this does not run, threads do all the work."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def fits(self, secret: Secret, password: bytes, *, in_process: bool = False) -> bool:
        """Whether a password is the secret's. `in_process`: use the process, so as not to delay anybody; one
        password at a time."""
        if in_process and self._nursery is not None and trio.current_time() >= self._in_threads_until:
            try:
                with trio.fail_after(PATIENCE_SECONDS):
                    return secret.has_key(await self._key(self._nursery, secret, password))
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started for it
                self._turn_to_threads(str(error))
            except trio.TooSlowError:
                self._turn_to_threads("other processes leave it no processor")
        async with self._limiter:
            return bool(await self._in_thread(secret.fits, password))

    def _turn_to_threads(self, reason: str) -> None:
        now = trio.current_time()
        if now >= self._in_threads_until:
            logger.warning(
                "the process that hashes passwords of addresses that fail often did not answer; for a "
                "minute threads of the server hash, and many logins delay other clients; look at `reason`, "
                "and at who connects",
                reason=reason,
            )
        self._in_threads_until = now + IN_THREADS_SECONDS

    async def _key(self, nursery: trio.Nursery, secret: Secret, password: bytes) -> bytes:
        one: _Hasher = self._hasher or await nursery.start(self._keep)
        one.alive.deadline = math.inf
        try:
            found = await one.key(secret, password)
        except BaseException:
            self._hasher = None
            one.alive.cancel()
            raise
        one.alive.deadline = trio.current_time() + IDLE_SECONDS
        return found

    async def _keep(self, *, task_status: trio.TaskStatus[_Hasher]) -> None:
        """Start a process, and end it."""
        process = await trio.lowlevel.open_process(
            self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, process_group=0
        )
        one = self._hasher = _Hasher(process)
        try:
            with one.alive:
                task_status.started(one)
                await process.wait()
        finally:
            if self._hasher is one:
                self._hasher = None
            process.kill()
            with trio.CancelScope(shield=True):
                assert process.stdio is not None
                await process.stdio.aclose()
                await process.wait()
