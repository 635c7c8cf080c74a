"""What a queue is to all that queues of several protocols share, whatever its messages are."""

import math

import attrs

from shared.queues.waits import NONE

HOT_LEAST_BYTES = 16 << 10
"""Every queue may keep this much in memory, whatever the others do."""


@attrs.define(eq=False, repr=False)
class QueueBase:
    """A queue that may be stopped. `deadline` and `scheduled` belong to `Timers`; `mark`, `marked_at` and
    `tick` to `Waits`."""

    deleted: bool = attrs.field(default=False, init=False)
    paused: bool = attrs.field(default=False, init=False)
    """The queue takes messages and delivers none, until it is resumed. What waits expires."""
    stops: int = attrs.field(default=0, init=False)
    """Reasons to deliver nothing: a pause; and messages that are on their way back, since some of them stand
    before all there are."""
    deadline: float = attrs.field(default=math.inf, init=False)
    scheduled: float = attrs.field(default=math.inf, init=False)
    mark: int = attrs.field(default=NONE, init=False)
    marked_at: float = attrs.field(default=0.0, init=False)
    tick: int = attrs.field(default=0, init=False)

    @property
    def returning(self) -> bool:
        """Whether messages are on their way back."""
        return self.stops > self.paused

    def dispatch(self) -> None:
        """Deliver what can be delivered; nothing while there are `stops`."""
        raise NotImplementedError

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.paused = True
        self.stops += 1

    def resume(self) -> None:
        """Deliver again."""
        self.paused = False
        self.stops -= 1
        if not (self.stops or self.deleted):
            self.dispatch()

    def await_returns(self, count: int = 1) -> None:
        """Deliver nothing until `all_returned` is called for as many: some of what comes back stands before
        all there is."""
        self.stops += count

    def all_returned(self, count: int = 1) -> None:
        """So many of those that `await_returns` was called for are back."""
        self.stops -= count
        if not (self.returning or self.deleted):
            self.dispatch()
