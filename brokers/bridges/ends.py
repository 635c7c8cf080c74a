"""The bridge ends that plugins name, each imported when a bridge first needs it."""

from collections.abc import Sequence
from pkgutil import resolve_name

from shared.bridging import BridgeEnds
from shared.plugin import Plugin


class EndsOf:
    """`Ends` of these plugins."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._named = {plugin.name: plugin.bridges for plugin in plugins}

    def __call__(self, protocol: str) -> BridgeEnds | None:
        named = self._named.get(protocol)
        found: BridgeEnds | None = None if named is None else resolve_name(named)
        return found
