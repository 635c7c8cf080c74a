"""The load on DMP's queues and its judgement, against a server in this process that ends as a killed one."""

import math
import random
import time
from heapq import heappush
from pathlib import Path
from typing import Any

import pytest

from dmp.once import Once
from dmp.queue_log import QueueLog
from dmp.settings import DmpSettings
from shared.queues import keys
from shared.queues.runs import Run
from shared.storage.store import Ticket
from tests.dmp.served import served
from tests.trials.dmp_folder import look
from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import DmpBook
from tests.trials.dmp_load import DmpLoad
from tests.trials.tally import Verdict

LEAST = 300


def killed_under_load(folder: Path, book: DmpBook | None = None) -> Verdict:
    book = book or DmpBook()
    with served(folder, DmpSettings(hot_bytes=20_000), clean=False) as server:
        load = DmpLoad(("127.0.0.1", server.port), book, random.Random(3 + book.places))
        give_up = time.monotonic() + 30
        while (sent(book) < LEAST or acknowledged(book) < LEAST / 10) and time.monotonic() < give_up:
            load.run(0.02)
        cut = time.monotonic()
    if faults := load.drain(cut):
        return Verdict(faults=faults)
    with served(folder) as server:
        book.new_life(math.inf)
        verdict = judge(book, look(("127.0.0.1", server.port), give_back=True))
    book.drained(time.monotonic())
    return verdict


def sent(book: DmpBook) -> int:
    """Confirmed in this life of the server."""
    return sum(
        bool(message.answered) for queue in book.queues.values() for message in queue.messages.values()
    )


def acknowledged(book: DmpBook) -> int:
    return sum(
        message.ack is not None and message.ack.acknowledged
        for queue in book.queues.values()
        for message in queue.messages.values()
    )


def test_a_server_that_keeps_its_promises_is_found_to(tmp_path: Path) -> None:
    book = DmpBook()
    verdict = killed_under_load(tmp_path, book)
    assert verdict.faults == []
    assert verdict.kept > 50
    assert verdict.commits >= LEAST / 10
    assert book.named
    assert killed_under_load(tmp_path, book).faults == []


def test_a_server_that_forgets_acknowledgements_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: QueueLog) -> Ticket | None:
        self._taken.clear()
        return None

    monkeypatch.setattr(QueueLog, "flush", forget)
    assert "acknowledged ACKs undone" in "".join(killed_under_load(tmp_path).faults)


def one_more(self: keys.Keys, per_key: int = 0, *, init: Any = keys.Keys.__init__, **options: Any) -> None:
    init(self, per_key and per_key + 1, **options)


def newest_first(heap: list[tuple[int, Any]], entry: tuple[int, Any]) -> None:
    """A `heappush` that puts the messages of a key the wrong way round."""
    number, what = entry
    heappush(heap, (-number if isinstance(what, Run) else number, what))


@pytest.mark.parametrize(
    ("owner", "name", "instead", "told"),
    [
        (keys.Keys, "__init__", one_more, "of its key 'k"),
        (keys, "heappush", newest_first, "an earlier one of its key was not acknowledged"),
    ],
)
def test_a_server_that_has_no_regard_for_keys_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, instead: Any, told: str
) -> None:
    monkeypatch.setattr(owner, name, instead)
    assert told in "".join(killed_under_load(tmp_path).faults)


def test_a_server_that_forgets_names_as_it_ends_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = DmpBook()
    monkeypatch.setattr(Once, "restore", lambda self, windows: None)
    monkeypatch.setattr(Once, "found", lambda self, run: None)
    assert killed_under_load(tmp_path, book).faults == []
    assert "once: " in "".join(killed_under_load(tmp_path, book).faults)
