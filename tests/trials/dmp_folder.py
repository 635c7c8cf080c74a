"""A data folder under an AMQP load: recover, compare, load, cut, and again.

Looking at a queue is taking all that is in it and giving it back, by a nack or by the end of the connection.
What is promised and how that is judged: `dmp_judge`.
"""

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence

import attrs
from pamqp import body, commands
from pamqp.header import ContentHeader

from dmp.amqp.wire import encode
from tests.support.server import until
from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import QUEUES, DmpBook
from tests.trials.dmp_load import Asking, DmpLoad
from tests.trials.folder import MODES, Folder, durability, storage_settings
from tests.trials.verify import Verification

Shown = Mapping[str, tuple[bytes, ...]]


def dmp_settings(modes: Sequence[str], source: random.Random) -> str:
    """TOML: one of the modes for all queues; the storage's ways are drawn."""
    return "\n".join(
        [
            *storage_settings(source),
            "[dmp]",
            f'durability = "{durability(source.choice(modes))}"',
            f"hot_bytes = {source.choice((0, 20_000, 64 << 20))}",  # 0: what waits is read back from the log
            "",
        ]
    )


class DmpWork:
    """What of a folder is about DMP: before `Folder`, or what is derived from it, among the bases."""

    __slots__ = ()

    def load(self) -> DmpLoad:
        self.book.mode = self._mode()
        return DmpLoad(self.server.address("dmp"), self.book, self.source)

    def promised_records(self, until: float) -> int:
        return self.book.promised(until)

    def _mode(self) -> str:
        found = tomllib.loads((self.server.folder / "brokers.toml").read_text())["dmp"]["durability"]
        return next(mode for mode in MODES if durability(mode) == found)

    def _verify(self, promised_until: Callable[[DmpBook], float]) -> Verification:
        self.book.mode = self._mode()
        shown = look(self.server.address("dmp"), give_back=self.source.random() < 0.5)
        verdict = judge(self.book, shown, promised_until(self.book))
        return Verification(verdict, {self.book.mode: verdict}, shown)

    def _look(self) -> Shown:
        return look(self.server.address("dmp"), give_back=True)

    def _same(self, name: str, before: Shown, now: Shown) -> bool:
        return before.get(name) == now.get(name)


@attrs.define(eq=False)
class DmpFolder(DmpWork, Folder):
    """A data folder, its server, and all that was asked of its queues."""

    book: DmpBook = attrs.field(factory=DmpBook)


def look(address: tuple[str, int], *, give_back: bool) -> Shown:
    """The queues that are there, and what is in each, in order; all is back in its place at the end."""
    with Asking(address) as asking:
        depths = _depths(asking)
        shown = {name: tuple(_take(asking, name, depth)) for name, depth in depths.items()}
        if give_back:
            asking.send(encode(commands.Basic.Nack(0, True, True), 1))
            _await_depths(asking, depths)
    with Asking(address) as asking:
        _await_depths(asking, depths)
    return shown


def _depths(asking: Asking) -> dict[str, int]:
    """Ready messages by queue, of those that are there: one that is not costs the channel it is asked on."""
    depths = {}
    for channel, name in enumerate(QUEUES, start=2):
        asking.ask(commands.Channel.Open(), commands.Channel.OpenOk, channel)
        asking.send(encode(commands.Queue.Declare(queue=name, passive=True), channel))
        match asking.next():
            case commands.Queue.DeclareOk() as found:
                depths[name] = found.message_count
                asking.ask(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk, channel)
            case commands.Channel.Close():
                asking.send(encode(commands.Channel.CloseOk(), channel))
            case other:
                raise ValueError(f"Queue.Declare: {other.name}")
    return depths


def _take(asking: Asking, name: str, depth: int) -> list[bytes]:
    bodies: list[bytes] = []
    asking.send(encode(commands.Basic.Get(0, name, False), 1) * depth)
    for _ in range(depth):
        found = asking.next()
        if not isinstance(found, commands.Basic.GetOk):
            raise ValueError(f"{name}: of {depth} messages {len(bodies)} came, then {found.name}")
        head = asking.next()
        assert isinstance(head, ContentHeader)
        content = b""
        while len(content) < head.body_size:
            part = asking.next()
            assert isinstance(part, body.ContentBody)
            content += part.value
        bodies.append(content)
    return bodies


def _await_depths(asking: Asking, depths: Mapping[str, int]) -> None:
    """Raises AssertionError where they do not become what they were."""
    until(lambda: _depths(asking) == depths)
