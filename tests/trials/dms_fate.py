"""What time and tries do to the messages of a queue: its options, as CREATE_QUEUE has them."""

import json
from typing import Any

import attrs


@attrs.frozen
class Fate:
    """0 and "": without."""

    ttl_ms: int = 0
    delay_ms: int = 0
    retry_ms: int = 0
    retry_max_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @property
    def json(self) -> bytes:
        return json.dumps(self.options).encode()

    def retry_seconds(self, deliveries: int) -> float:
        """From a NACK of the so-manieth delivery to the next."""
        return min(self.retry_ms << (deliveries - 1), max(self.retry_ms, self.retry_max_ms)) / 1000
