"""Why the input of a connection is held back, beside the reasons of all protocols: AMQP's and sinks'."""

import weakref
from collections.abc import Callable

from shared.net.session import SessionBase
from shared.net.stops import STOP_WORDS, Stop

STOP_MEMORY = Stop.FIRST_OWN
"""Queues hold as much as they may."""
STOP_BODIES = Stop.FIRST_OWN << 1
"""Large bodies come faster than the disk takes them."""
STOP_READY = Stop.FIRST_OWN << 2
"""What is asked for is being read from a queue's log, or waits for the disk."""
STOP_WORK = Stop.FIRST_OWN << 3
"""Very many messages are being settled, in turns: the input behind them finds all of them settled."""

OWN_STOP_WORDS = STOP_WORDS | {
    STOP_MEMORY: "memory for messages",
    STOP_BODIES: "the disk to take large bodies",
    STOP_READY: "its queues",
    STOP_WORK: "its acknowledgements",
}


def stop_until(session: SessionBase, reason: int, when: Callable[[Callable[[], None]], None]) -> None:
    """Hold input back until `when` calls what it is given, which it does once.

    That does not keep the session in memory, which may end before: the wait may be long, and clients come and
    go meanwhile.
    """
    reference = weakref.ref(session)

    def go_on() -> None:
        session = reference()
        if session is not None:
            session.connection.attempt(session.resume_next_turn, reason)

    session.pause_input(reason)
    when(go_on)
