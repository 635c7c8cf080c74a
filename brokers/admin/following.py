"""What goes on, as a list or followed: `Recent` rows as server-sent events.

A follower looks four times a second, so that what adds rows (any thread, a message on its way) wakes nobody.
What was pushed out between two looks is told as an event `missed`. An `id` is a row's number; a browser that
connects again says the last one that it has (`Last-Event-ID`), and goes on behind it.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from brokers.admin.api import as_json, caller_of
from brokers.commands.render import json_value
from brokers.host.recent import KEPT, Recent, Row
from shared.shares import PercentOf, Shares, everything

LOOK_SECONDS = 0.25
BEAT_SECONDS = 15.0
"""After so long without a row a comment is sent, which detects followers that have left."""
END_SECONDS = 5.0
"""How long the last piece of an answer may take to be read."""
FOLLOWERS_MAX = 32
"""Followers in all; each holds one of the admin port's 128 connections."""
PARAMETERS = {
    "follow": "1: go on, as server-sent events",
    "after": "an id: only later ones",
    "limit": "rows of a list: the newest, or the first behind `after`",
}

Wanted = Callable[[Row], bool]


class Stream(StreamingResponse):
    """An answer in pieces. However it ends, the generator of the pieces is closed at once."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message.get("more_body", True):
                await send(message)
                return
            # The end counts as a disconnect, which would cancel this before the connection is closed.
            with trio.move_on_after(END_SECONDS, shield=True):
                await send(message)

        async with aclosing(self.body_iterator):
            await super().stream_response(sending)


class Followers:
    """The present followers; `answer` serves one more, or a list."""

    def __init__(self, percent_of: PercentOf = everything) -> None:
        self.count = 0
        self._shares = Shares(percent_of)

    def answer(
        self, request: Request, recent: Recent, wanted: Wanted, at_look: Callable[[], object] = lambda: None
    ) -> Response:
        """`?follow=1`: a stream of events, first what is kept; else a list. Raises HTTPException.

        `at_look`: called with each look of the stream.
        """
        query = request.query_params
        after = _number(request.headers.get("last-event-id") or query.get("after", ""), "after")
        if after > recent.last:  # of an earlier run
            after = 0
        follow = query.get("follow", "0").lower()
        if follow not in ("", "0", "false", "1", "true"):
            raise HTTPException(400, "follow is 1 (true) or 0 (false)")
        if follow in ("", "0", "false"):
            limit = min(_number(query.get("limit", str(KEPT)), "limit") or 1, KEPT)
            rows = [{"id": number, **row} for number, row in recent.after(after) if wanted(row)]
            # The newest, unless the caller goes through them.
            items = rows[:limit] if after else rows[-limit:]
            more = items[-1]["id"] if items and items[-1] is not rows[-1] else None
            return as_json({"items": items, "next": None if more is None else str(more)})
        if self.count >= FOLLOWERS_MAX:
            raise HTTPException(503, f"{FOLLOWERS_MAX} follow already: end one, or ask without follow")
        user, _ = caller_of(request)
        if not self._shares.fits(user, FOLLOWERS_MAX):
            text = f"{user} follows {self._shares.of(user)} times already: end one, or ask without follow"
            raise HTTPException(503, text)
        allowed: Callable[[], bool] = request.scope.get("brokers.allowed", lambda: True)
        return Stream(
            self._events(recent, after, wanted, allowed, at_look, user),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},  # a proxy before us hands on what it gets
        )

    async def _events(
        self,
        recent: Recent,
        after: int,
        wanted: Wanted,
        allowed: Callable[[], bool],
        at_look: Callable[[], object],
        user: str,
    ) -> AsyncGenerator[bytes, None]:
        self.count += 1
        self._shares.add(user)
        try:
            yield b": follows\n\n"
            beat = trio.current_time() + BEAT_SECONDS
            first = after == 0
            while allowed():
                at_look()
                rows = recent.after(after)
                if rows:
                    text = []
                    if (missed := rows[0][0] - after - 1) and not first:
                        text.append(f'event: missed\ndata: {{"count": {missed}}}\n\n')
                    after, first = rows[-1][0], False
                    for number, row in rows:
                        if wanted(row):
                            data = json.dumps({"id": number, **row}, default=json_value)
                            text.append(f"id: {number}\ndata: {data}\n\n")
                    if text:
                        yield "".join(text).encode()
                        beat = trio.current_time() + BEAT_SECONDS
                if trio.current_time() >= beat:
                    yield b":\n\n"
                    beat = trio.current_time() + BEAT_SECONDS
                await trio.sleep(LOOK_SECONDS)
        finally:
            self.count -= 1
            self._shares.add(user, -1)


def _number(text: str, name: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise HTTPException(400, f"{name} is a number of 15 digits at most")
    return int(text or 0)
