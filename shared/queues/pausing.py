"""Pausing a queue: it takes messages and delivers none. Here: the actions and log lines of all protocols."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from shared.actions import PAUSE, RESUME, Declared
from shared.objects import Action
from shared.queues.core import RunQueue

if TYPE_CHECKING:
    from shared.storage.log import Ticket

SHOWN_MAX = 10


def actions(
    set_paused: Callable[[Any, bool], Awaitable[None]],
    name_of: Callable[[Any], str],
    log: structlog.stdlib.BoundLogger,
) -> tuple[Action, Action]:
    """The actions `pause` and `resume`. `set_paused` pauses or resumes a queue; a durable queue stays so."""

    def action(declared: Declared, paused: bool) -> Action:
        async def change(queue: Any, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, int]:
            changes = queue.paused != paused
            if changes and not dry_run:
                await set_paused(queue, paused)
                if paused:
                    log.warning(
                        "a queue is paused: it takes messages and delivers none until it is resumed",
                        queue=name_of(queue),
                    )
                else:
                    log.info("a queue is resumed: its messages are delivered again", queue=name_of(queue))
            return {declared.answers[0]: int(changes)}

        return declared.done_by(change)

    return action(PAUSE, True), action(RESUME, False)


def switch(queue: RunQueue, paused: bool, ticket: "Ticket | None") -> None:
    """Pause or resume a queue, and undo it if its record cannot be written."""

    def set_paused(yes: bool) -> None:
        if queue.paused != yes and not queue.deleted:
            if yes:
                queue.pause()
            else:
                queue.resume()

    set_paused(paused)
    if ticket is not None:
        ticket.when_done(lambda done: None if done.error is None else set_paused(not paused))


def tell_paused(log: structlog.stdlib.BoundLogger, names: Sequence[str]) -> None:
    """Log at the start that some queues are still paused."""
    if names:
        log.warning(
            "queues are still paused, as before the restart: they take messages and deliver none; their "
            "action `resume` ends that",
            queues=sorted(names)[:SHOWN_MAX],
            count=len(names),
        )
