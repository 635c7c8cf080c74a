"""A clock that stands still until it is told."""


class FakeClock:
    """The `Clock` of shared/storage/clock.py."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._seconds = 1000.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._wall_ms += round(seconds * 1000)
