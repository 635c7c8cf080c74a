"""One AMQP connection."""

from dmp.broker import Broker
from shared.net.connection import Connection


class Session:
    """The server's side."""

    def __init__(self, connection: Connection, broker: Broker) -> None:
        self.connection = connection
        self.broker = broker

    def receive(self, data: bytes) -> None:
        """Apply."""

    def receive_eof(self) -> None:
        """End."""

    def on_deadline(self, now: float) -> None:
        """Time."""

    def connection_lost(self) -> None:
        """Gone."""

    def drain(self) -> None:
        """The server stops."""
