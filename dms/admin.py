"""Administrative verbs: what has no word on the wire."""

from collections.abc import Sequence

from dms.broker import Broker
from shared.plug import Verb


class Admin:
    def __init__(self, broker: Broker) -> None:
        self.verbs: Sequence[Verb] = ()
