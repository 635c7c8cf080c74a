"""SIGTERM ends a command as Ctrl-C does: what it has to do at its end is done, and the signal ends it then.

Services are ended by SIGTERM. A command hears it as SIGINT, for which Python and trio have a way into every
kind of code. A server has its own handlers for both (`brokers.host.serving`).
"""

import atexit
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final

_INTERRUPT: Final = {signal.SIGINT}


class Termination:
    """The way of this process to end by SIGTERM."""

    def __init__(self) -> None:
        self._came = False

    def hear(self) -> None:
        """Hear SIGTERM from now on, unless the caller has it ignored."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell lets what a script starts in the background ignore SIGINT. So it goes on doing: what is
            # blocked waits, and our own comes through.
            signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._interrupt)
        atexit.register(self._end)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        hear_interrupts()
        signal.raise_signal(signal.SIGINT)

    def _end(self) -> None:
        """End the process by SIGTERM if that ended the command: whoever sent it looks for that."""
        if self._came:
            with suppress(OSError):
                sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


def hear_interrupts() -> None:
    """Let SIGINT through, also what has come of it while it was ignored."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
