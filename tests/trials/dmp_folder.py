"""A data folder under an AMQP load: recover, compare, load, cut, and again.

Looking at a queue is taking all that is in it and giving it back, by a nack or by the end of the connection.
Of a queue with keys not all can be held at once: what is in it is taken and acknowledged.
What is promised and how that is judged: `dmp_judge`.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs
from pamqp import body, commands
from pamqp.header import ContentHeader

from dmp.amqp.wire import encode
from tests.support.server import until
from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import KEYED, QUEUES, DmpBook
from tests.trials.dmp_load import DELAYS_MS, LATE_SECONDS, Asking, DmpLoad
from tests.trials.folder import Adapter, HasMode, Verification, durability

Shown = Mapping[str, tuple[bytes, ...]]
_TOGETHER = 32
"""So many are asked for at once."""


@attrs.define(eq=False)
class DmpAdapter(Adapter):
    """Durable queues over AMQP 0-9-1, all of one mode."""

    protocol = "dmp"
    book: DmpBook = attrs.field(factory=DmpBook, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """One of the modes for all queues."""
        return [
            "[dmp]",
            f'durability = "{durability(source.choice(modes))}"',
            f"hot_bytes = {source.choice((0, 20_000, 64 << 20))}",  # 0: what waits is read back from the log
        ]

    def load(self) -> DmpLoad:
        self.book.mode = self.mode_set("dmp")
        return DmpLoad(self.address, self.book, self.source)

    def promised_records(self, until: float) -> int:
        return self.book.promised(until)

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        self.book.mode = self.mode_set("dmp")
        until = promised_until(self.book)
        self.book.new_life(until)
        shown = look(self.address, give_back=self.source.random() < 0.5)
        verdict = judge(self.book, shown, until)
        self.book.drained(time.monotonic())
        return Verification(verdict, {self.book.mode: verdict}, shown)

    def look(self) -> Shown:
        return look(self.address, give_back=True)

    def same(self, name: str, before: Shown, now: Shown) -> bool:
        """What was taken of queues with keys may be back."""
        if name in KEYED:
            return set(now.get(name, ())) <= set(before.get(name, ()))
        return super().same(name, before, now)


def look(address: tuple[str, int], *, give_back: bool) -> Shown:
    """The queues that are there, and what is in each, in order; all is back in its place at the end, but for
    queues with keys. So it is once all delays are over."""
    time.sleep(DELAYS_MS[-1] / 1000 + LATE_SECONDS)
    with Asking(address) as asking:
        depths = depths_of(asking)
        shown = {name: tuple(drain(asking, name, depths[name])) for name in KEYED if name in depths}
    with Asking(address) as asking:
        depths |= dict.fromkeys(shown, 0)
        shown |= {
            name: tuple(take(asking, name, depth)) for name, depth in depths.items() if name not in KEYED
        }
        if give_back:
            asking.send(encode(commands.Basic.Nack(0, True, True), 1))
            _await_depths(asking, depths)
    with Asking(address) as asking:
        _await_depths(asking, depths)
    return shown


def depths_of(asking: Asking, names: Sequence[str] = QUEUES) -> dict[str, int]:
    """Ready messages by queue, of those that are there: one that is not costs the channel it is asked on."""
    depths = {}
    for channel, name in enumerate(names, start=2):
        asking.ask(commands.Channel.Open(), commands.Channel.OpenOk, channel)
        asking.send(encode(commands.Queue.Declare(queue=name, passive=True), channel))
        match asking.next():
            case commands.Queue.DeclareOk() as found:
                depths[name] = found.message_count or 0
                asking.ask(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk, channel)
            case commands.Channel.Close():
                asking.send(encode(commands.Channel.CloseOk(), channel))
            case other:
                raise ValueError(f"Queue.Declare: {other.name}")
    return depths


def take(asking: Asking, name: str, depth: int) -> list[bytes]:
    """The bodies of so many messages, which are back once the connection ends. Raises ValueError."""
    bodies: list[bytes] = []
    asking.send(encode(commands.Basic.Get(0, name, False), 1) * depth)
    for _ in range(depth):
        got = _got(asking)
        if got is None:
            raise ValueError(f"{name}: of {depth} messages {len(bodies)} came")
        bodies.append(got[0])
    return bodies


def drain(asking: Asking, name: str, depth: int) -> list[bytes]:
    """The bodies of so many messages of a queue with keys, which are acknowledged as soon as no more come.
    Raises ValueError where more of a key come together than may be held, or another number in all."""
    bodies: list[bytes] = []
    most = KEYED[name]["x-per-key"]
    while True:
        asking.send(encode(commands.Basic.Get(0, name, False), 1) * _TOGETHER)
        found = [got for _ in range(_TOGETHER) if (got := _got(asking)) is not None]
        held = Counter([key for _, key in found if key])
        if held and max(held.values()) > most:
            raise ValueError(f"{name}: more than {most} of a key: {held}")
        if not found:
            break
        bodies += [content for content, _ in found]
        asking.send(encode(commands.Basic.Ack(0, True), 1))
    if len(bodies) != depth:
        raise ValueError(f"{name}: of {depth} messages {len(bodies)} came")
    return bodies


def _got(asking: Asking) -> tuple[bytes, str] | None:
    """The body and the key of what a `basic.get` has found. Raises ValueError."""
    found = asking.next()
    if isinstance(found, commands.Basic.GetEmpty):
        return None
    if not isinstance(found, commands.Basic.GetOk):
        raise ValueError(f"Basic.Get: {found.name}")
    head = asking.next()
    assert isinstance(head, ContentHeader)
    content = b""
    while len(content) < head.body_size:
        part = asking.next()
        assert isinstance(part, body.ContentBody)
        content += part.value
    return content, str((head.properties.headers or {}).get("x-key", ""))


def _await_depths(asking: Asking, depths: Mapping[str, int]) -> None:
    """Raises AssertionError where they do not become what they were."""
    until(lambda: depths_of(asking) == depths)
