"""Who traces what: the names whose messages are copied, and the last copies of each.

A name is traced while somebody follows it, and for `LINGER_SECONDS` after somebody has asked for the list. So
the first list of a name is empty, and who asks again gets what has passed since.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from brokers.host.recent import Recent
from brokers.host.service import SupervisedService
from shared.errors import BrokerError
from shared.objects import BadValue, time_text
from shared.shares import PercentOf, Shares, everything
from shared.tracing import Tap

NAMES_MAX = 8
NAME_CHARACTERS_MAX = 255
LINGER_SECONDS = 30.0
LOOK_SECONDS = 1.0


class TooManyTraces(BrokerError):
    """`NAMES_MAX` names are traced."""


@attrs.define(eq=False)
class _Trace:
    recent: Recent
    until: float
    scope: trio.CancelScope
    user: str
    """Who asked first."""


@attrs.define(eq=False)
class Traces:
    """All names that are traced. `services`: what can be traced; `now_ms`: the wall clock; `percent_of`: a
    user's share of `NAMES_MAX`."""

    _services: Callable[[], Sequence[SupervisedService]]
    _now_ms: Callable[[], float]
    _percent_of: PercentOf = everything
    _traces: dict[str, _Trace] = attrs.field(factory=dict, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _shares: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = Shares(self._percent_of)

    async def run(self) -> None:
        """End traces that nobody follows any more, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(LOOK_SECONDS)
                for name, trace in [*self._traces.items()]:
                    if trace.until < trio.current_time():
                        del self._traces[name]
                        self._shares.add(trace.user, -1)
                        trace.scope.cancel()

    def of(self, name: str, user: str = "") -> Recent:
        """The copies of what passes this name; from now on, if nobody asked before. Ask again to go on.

        Raises BadArgument, TooManyTraces.
        """
        until = trio.current_time() + LINGER_SECONDS
        trace = self._traces.get(name)
        if trace is None:
            if not 0 < len(name) <= NAME_CHARACTERS_MAX:
                raise BadValue(f"name is a text of 1 to {NAME_CHARACTERS_MAX} characters")
            if len(self._traces) >= NAMES_MAX:
                raise TooManyTraces(f"{NAMES_MAX} names are traced: one ends when nobody has asked for 30 s")
            if not self._shares.fits(user, NAMES_MAX):
                raise TooManyTraces(
                    f"{user} traces {self._shares.of(user)} names: one ends when not asked for 30 s"
                )
            self._shares.add(user)
            trace = self._traces[name] = _Trace(Recent(), until, trio.CancelScope(), user)
            if self._nursery is not None:
                self._nursery.start_soon(self._trace, name, trace)
        trace.until = until
        return trace.recent

    async def _trace(self, name: str, trace: _Trace) -> None:
        def take(protocol: str, row: Mapping[str, Any]) -> None:
            trace.recent.add({**row, "protocol": protocol, "time": time_text(self._now_ms())})

        with trace.scope:
            async with trio.open_nursery() as nursery:
                for service in self._services():
                    tap = Tap(name, partial(take, service.name))
                    nursery.start_soon(service.trace, tap)
