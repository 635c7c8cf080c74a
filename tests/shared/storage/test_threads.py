"""Threads for the store's blocking work, also where the system has none left for us."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio._core import _thread_cache

from shared.storage.background import Threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, no thread can be started any more."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def begin() -> None:
        monkeypatch.setattr(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())
        monkeypatch.setattr(threading.Thread, "start", refuse)

    return begin


async def test_without_a_thread_the_work_is_done_all_the_same(no_threads: Callable[[], None]) -> None:
    threads = Threads()
    limiter = trio.CapacityLimiter(1)
    assert await threads(threading.get_ident, limiter=limiter) != threading.get_ident()
    no_threads()
    with capture_logs() as logged:
        for _ in range(2):
            assert await threads(threading.get_ident, limiter=limiter) == threading.get_ident()
            assert await threads(divmod, 7, 2) == (3, 1)
    assert [line["log_level"] for line in logged] == ["warning"], "told once"
    assert limiter.borrowed_tokens == 0


async def test_work_that_fails_is_not_done_twice() -> None:
    done = []

    def work() -> Any:
        done.append(1)
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await Threads()(work)
    assert done == [1]
