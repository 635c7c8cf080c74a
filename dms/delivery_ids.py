"""The ids of deliveries: numbers of 32 bits whose highest bit is set, in order, and anew from the start when
all were used."""

from collections.abc import Callable, Iterable, Sequence

import attrs

from dms.wire import DELIVERY_ID_BIT

_END = 1 << 32


@attrs.define(eq=False)
class DeliveryIds:
    """Unused ids. `held`: all ids of deliveries that are unacknowledged."""

    _held: Callable[[], Iterable[Sequence[bytes]]]
    next: int = DELIVERY_ID_BIT
    """The id that is used next, if it is below `until`; else `take` finds one."""
    until: int = _END

    def take(self, count: int) -> int:
        """The first of `count` consecutive unused ids."""
        first = self.next
        if first + count > self.until:
            first = self._free(count)
        self.next = first + count
        return first

    def come_soon(self, delivery_id: int, count: int) -> bool:
        """Whether one of the next `count` deliveries may get this id."""
        first = self.next
        return first <= delivery_id < first + count or first + count > self.until

    def _free(self, count: int) -> int:
        """All ids have been used once: continue from the start, past those still in use."""
        used = sorted(int.from_bytes(each) for ids in self._held() for each in ids)
        first = self.next if self.next + count <= _END else DELIVERY_ID_BIT
        for _ in range(2):
            for each in (*used, _END):
                if each >= first:
                    if each - first >= count:
                        self.until = each
                        return first
                    first = each + 1
            first = DELIVERY_ID_BIT
        raise AssertionError("as many messages are held as there are ids")
