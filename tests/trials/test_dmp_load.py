"""The load on DMP's queues and its judgement, against a server in this process that ends as a killed one."""

import random
import time
from pathlib import Path

import pytest

from dmp.queue_log import QueueLog
from dmp.settings import DmpSettings
from shared.storage.store import Ticket
from tests.dmp.served import served
from tests.trials.dmp_folder import look
from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import DmpBook
from tests.trials.dmp_load import DmpLoad
from tests.trials.tally import Verdict

LEAST = 300


def killed_under_load(folder: Path) -> Verdict:
    book = DmpBook()
    with served(folder, DmpSettings(hot_bytes=20_000), clean=False) as server:
        load = DmpLoad(("127.0.0.1", server.port), book, random.Random(3))
        give_up = time.monotonic() + 30
        while (sent(book) < LEAST or acknowledged(book) < LEAST / 10) and time.monotonic() < give_up:
            load.run(0.02)
        cut = time.monotonic()
    assert load.drain(cut) == []
    with served(folder) as server:
        return judge(book, look(("127.0.0.1", server.port), give_back=True))


def sent(book: DmpBook) -> int:
    return sum(
        message.answered is not None for queue in book.queues.values() for message in queue.messages.values()
    )


def acknowledged(book: DmpBook) -> int:
    return sum(
        message.ack is not None and message.ack.acknowledged
        for queue in book.queues.values()
        for message in queue.messages.values()
    )


def test_a_server_that_keeps_its_promises_is_found_to(tmp_path: Path) -> None:
    verdict = killed_under_load(tmp_path)
    assert verdict.faults == []
    assert verdict.kept > 50
    assert verdict.commits >= LEAST / 10


def test_a_server_that_forgets_acknowledgements_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: QueueLog) -> Ticket | None:
        self._taken.clear()
        return None

    monkeypatch.setattr(QueueLog, "flush", forget)
    assert "acknowledged ACKs undone" in "".join(killed_under_load(tmp_path).faults)
