"""How much of a connection's input is applied at a time, and why it is held back: AMQP's and sinks'."""

import weakref
from collections.abc import Callable, Iterator

from shared.net.session import STOP_WORDS, SessionBase, Stop
from shared.turns import Work

# Messages put into queues, counted once for each queue. After this many, other connections get their turn.
WORK_PER_STRETCH = 4096
# A message takes 0.4 us in a long run, and a run itself 5 to 12 us for each of its queues. So it counts as so
# many messages more, in each. Without it three messages to 2,000 queues were one stretch of 30 ms. 2,048 that
# differ took 24 ms in a queue with priorities.
RUN_WORK = 6
# A message to more queues is put into them in slices: one to 50,000 took 310 ms.
QUEUES_AT_ONCE = 2048


# Reasons to hold input back, beside those of `Stop`.
STOP_MEMORY = Stop.FIRST_OWN
"""Queues hold as much as they may."""
STOP_BODIES = Stop.FIRST_OWN << 1
"""Large bodies come faster than the disk takes them."""
STOP_READY = Stop.FIRST_OWN << 2
"""What is asked for is being read from a queue's log, or comes when deleted messages are freed."""

OWN_STOP_WORDS = STOP_WORDS | {
    STOP_MEMORY: "memory for messages",
    STOP_BODIES: "the disk to take large bodies",
    STOP_READY: "its queues",
}


def stop_until(session: SessionBase, reason: int, when: Callable[[Callable[[], None]], None]) -> None:
    """Hold input back until `when` calls what it is given, which it does once.

    That does not keep the session in memory, which may end before: the wait may be long, and clients come and
    go meanwhile.
    """
    found = weakref.ref(session)

    def go_on() -> None:
        session = found()
        if session is not None:
            session.connection.attempt(session.go_soon, reason)

    session.stop(reason)
    when(go_on)


def wait_for_work(session: SessionBase, long_work: Work, *work: Iterator[None]) -> None:
    """Have it done in slices; input waits meanwhile."""
    stop_until(session, STOP_READY, long_work.when_idle)
    for steps in work:
        long_work.add(steps)
