"""A connection to a LogMQ server, as a client has it: requests go out together, answers come in order."""

from typing import Any

import trio

from logmq.answers import Answer
from shared.client.dial import Disconnected
from shared.client.pipelining import Asking
from shared.errors import RemoteProtocolError


class Link(Asking[Answer]):
    """One connection's life; `answers`: how many have come."""

    answers = 0

    def receive(self, data: bytearray) -> int:
        at = 0
        while at < len(data):
            answer = self.awaited
            if answer is None:
                raise RemoteProtocolError(f"the server said more than it was asked: {bytes(data[:100])!r}")
            end = answer.take(data, at)
            if end < 0:
                break
            at = end
            if not answer.done:
                break
            self.answers += 1
            self.answered()
        return at

    def fail(self, answer: Answer, error: Disconnected) -> None:
        answer.fail(error)


async def answered(answer: Answer) -> Any:
    """Wait for an answer; its result. Raises its error."""
    if not answer.done:
        event = trio.Event()
        answer.on_done = event.set
        await event.wait()
    if answer.error is not None:
        raise answer.error
    return answer.result
