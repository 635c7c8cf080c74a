"""Protocols side by side on one server: loaded at once, each with its own book, and bridges between them."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import attrs
from pamqp import commands

from tests.trials.adapters import ADAPTERS
from tests.trials.dmp_folder import depths_of, take
from tests.trials.dmp_load import Asking
from tests.trials.folder import Adapter, HasMode, Load, Verification, storage_settings
from tests.trials.logmq_folder import Dialog
from tests.trials.logmq_model import split
from tests.trials.serving import TrialServer
from tests.trials.tally import Verdict

_CARRIED, _SOURCE = "carried", "always-shared-0"
"""A durable queue of AMQP, and the topic from which a bridge fills it."""

Result = TypeVar("Result")


class TogetherLoad:
    """Loads of several protocols, a thread each."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads

    def run(self, seconds: float) -> None:
        self._each(lambda load: load.run(seconds))

    def drain(self, cut: float) -> list[str]:
        return [fault for faults in self._each(lambda load: load.drain(cut)) for fault in faults]

    def _each(self, work: Callable[[Load], Result]) -> list[Result]:
        with ThreadPoolExecutor(len(self._loads)) as threads:
            return list(threads.map(work, self._loads))


@attrs.define(eq=False)
class TogetherAdapter(Adapter):
    """Several adapters of one server."""

    protocol = "all"
    parts: Sequence[Adapter] = attrs.field(kw_only=True)

    def serve_with(self, server: TrialServer) -> None:
        """From now on the protocols are served by this one."""
        for part in (self, *self.parts):
            part.server = server

    def load_seconds(self, *, intervals: bool) -> float:
        return max(part.load_seconds(intervals=intervals) for part in self.parts)

    def load(self) -> TogetherLoad:
        if self._bridged:
            with Asking(self.server.address("dmp")) as asking:
                declare = commands.Queue.Declare(queue=_CARRIED, durable=True)
                asking.ask(declare, commands.Queue.DeclareOk, 1)
        return TogetherLoad([part.load() for part in self.parts])

    def promised_records(self, until: float) -> int:
        return sum(part.promised_records(until) for part in self.parts)

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        """`Verification.verdicts` are by protocol."""
        whole, shown = Verification(Verdict(), {}, {}), {}
        verdicts: dict[str, Verdict] = {}
        for part in self.parts:
            done = part.verify(promised_until)
            done.verdict.faults = [f"{part.protocol}: {fault}" for fault in done.verdict.faults]
            whole.verdict.add(done.verdict)
            whole.repeated += done.repeated
            verdicts[part.protocol], shown[part.protocol] = done.verdict, done.snapshot
        whole.verdicts, whole.snapshot = verdicts, shown
        if self._bridged:
            whole.verdict.faults += self._carried_wrong()
        return whole

    def look(self) -> dict[str, Any]:
        return {part.protocol: part.look() for part in self.parts}

    @property
    def _bridged(self) -> bool:
        return {"logmq", "dmp"} <= {part.protocol for part in self.parts}

    def _carried_wrong(self) -> list[str]:
        """What a bridge has carried to another protocol is there once, in order, from the first on: the
        queue's records and the bridge's position are of one instant."""
        with Asking(self.server.address("dmp")) as asking:
            depths = depths_of(asking, (_CARRIED,))
            bodies = [body for name, depth in depths.items() for body in take(asking, name, depth)]
        with Dialog(self.server.address("logmq")) as dialog:
            if _SOURCE not in dialog.topics():
                return [f"{_CARRIED}: {len(bodies)} messages of a topic that is not there"] if bodies else []
            _, data = dialog.whole(_SOURCE)
        records = [payload for _, payload in split(data, 0) or []]
        if bodies == records[: len(bodies)]:
            return []
        pairs = zip(bodies, [*records, None], strict=False)
        wrong = next(at for at, (body, record) in enumerate(pairs) if body != record)
        return [f"{_CARRIED}: message {wrong} of {len(bodies)} is not record {wrong} of {len(records)}"]


def together_on(
    protocols: Sequence[str], source: random.Random, server: TrialServer, *, load_factor: float
) -> TogetherAdapter:
    """All logs in mode `always`. `settings_of` says what its server is to have."""
    parts = [
        ADAPTERS[name](server, ("always",), random.Random(source.random()), load_factor=load_factor)
        for name in protocols
    ]
    return TogetherAdapter(server, ("always",), source, load_factor=load_factor, parts=parts)


def settings_of(protocols: Sequence[str], source: random.Random) -> list[str]:
    """Lines of TOML, drawn."""
    lines = storage_settings(source)
    for name in protocols:
        lines += ADAPTERS[name].settings(("always",), source)
    if {"logmq", "dmp"} <= set(protocols):
        lines += ["[[bridge]]", f'name = "{_CARRIED}"', 'start = "first"']
        lines += [f'from = "logmq:{_SOURCE}"', f'to = "dmp:{_CARRIED}"']
    return lines
