"""Pauses that take no time."""

from types import SimpleNamespace

import pytest


class Pauses:
    """What a module gets for trio: `slept` has its pauses, in seconds, and the time is their sum."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.slept: list[float] = []
        own = SimpleNamespace(current_time=lambda: sum(self.slept), sleep=self._sleep)
        monkeypatch.setattr(f"{module}.trio", own)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
