"""Bindings that a start finds, and whose exchange or queue it does not."""

from collections.abc import Iterator

from dmp.declarations import Binding

_End = tuple[bytes, bool]
"""A name, and whether it is an exchange's."""


class WaitingBindings:
    """By either end: as many as there are cost a declaration nothing, unless they name it."""

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        self._by_end: dict[_End, dict[Binding, None]] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._bindings)

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        for end in _ends(binding):
            self._by_end.setdefault(end, {})[binding] = None

    def discard(self, binding: Binding) -> None:
        if self._bindings.pop(binding, self) is self:
            return
        for end in _ends(binding):
            those = self._by_end.get(end, {})
            those.pop(binding, None)
            if not those:
                self._by_end.pop(end, None)

    def naming(self, name: bytes, is_exchange: bool) -> list[Binding]:
        """Those that lead to or from it."""
        return list(self._by_end.get((name, is_exchange), ()))


def _ends(binding: Binding) -> tuple[_End, _End]:
    return (binding.source, True), (binding.destination, binding.to_exchange)
