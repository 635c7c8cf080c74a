"""What stops a queue: a pause, and messages on their way back. Behind the last of these it delivers again."""

import attrs

from shared.queues.core import QueueMemory, RunQueue


@attrs.define(eq=False, repr=False)
class Queue(RunQueue):
    delivers: list[int] = attrs.field(factory=list, init=False)
    """The `stops` that there were at each dispatch."""

    def dispatch(self) -> None:
        self.delivers.append(self.stops)


def test_a_queue_delivers_again_when_all_that_was_on_its_way_back_is_there() -> None:
    queue = Queue(QueueMemory())
    queue.await_returns(3)
    queue.await_returns()
    queue.all_returned(2)
    queue.all_returned()
    assert (queue.returning, queue.delivers) == (True, [])
    queue.all_returned()
    assert (queue.returning, queue.delivers) == (False, [0])


def test_what_comes_back_to_a_paused_queue_may_expire_and_is_not_delivered() -> None:
    queue = Queue(QueueMemory())
    queue.pause()
    queue.await_returns()
    assert queue.returning
    queue.all_returned()
    assert (queue.returning, queue.delivers) == (False, [1]), "it is dispatched, and stopped"
    queue.resume()
    assert queue.delivers == [1, 0]


def test_a_resumed_queue_still_waits_for_what_is_on_its_way_back() -> None:
    queue = Queue(QueueMemory())
    queue.pause()
    queue.await_returns()
    queue.resume()
    assert (queue.returning, queue.delivers) == (True, [])
    queue.all_returned()
    assert queue.delivers == [0]


def test_a_deleted_queue_delivers_nothing_whatever_ends() -> None:
    queue = Queue(QueueMemory())
    queue.pause()
    queue.await_returns()
    queue.deleted = True
    queue.resume()
    queue.all_returned()
    assert queue.delivers == []
