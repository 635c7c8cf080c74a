"""The ends that plugins name, imported where a bridge needs one."""

from collections.abc import Sequence
from importlib import import_module

from shared.bridging import BridgeEnds
from shared.plugin import Plugin


class EndsOf:
    """`Ends` of these plugins."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._named = {plugin.name: plugin.bridges for plugin in plugins}

    def __call__(self, protocol: str) -> BridgeEnds | None:
        named = self._named.get(protocol)
        if named is None:
            return None
        module, _, attribute = named.partition(":")
        found: BridgeEnds = getattr(import_module(module), attribute)
        return found
