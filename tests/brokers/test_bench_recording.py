"""`brokers bench recording` measures what it says; how fast that is here is not for a test to say."""

from pathlib import Path

import pytest

from brokers.bench import pouring, recording
from brokers.errors import ExitCode, Refusal
from shared.recording.recorder import Recording
from shared.recording.settings import RecordSettings
from shared.storage.settings import Durability
from tests.shared.recording.test_recorder import LOG
from tests.support.stores import open_store


def test_each_protocol_gives_a_row_beside_itself_and_no_message_is_unaccounted_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pouring, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(recording, "DISK_SECONDS", 0.01)
    rows = recording.bench(
        protocols=("kqmsgq", "pubsub"), size=50, rate=2000, seconds=0.05, rounds=1, data_dir=tmp_path
    )
    assert [row.protocol for row in rows] == ["kqmsgq", "pubsub"]
    for row in rows:
        assert (row.message_bytes, row.durability, row.baseline) == (50, "interval", recording.BASELINE)
        assert row.messages_per_second > 0
        assert row.baseline_per_second > 0
        assert row.ratio > 0
        assert row.recorded_percent + row.gap_percent == pytest.approx(100, abs=0.02)
        assert row.unaccounted == 0
        assert row.disk_megabytes_per_second > 0
    assert list(tmp_path.iterdir()) == []


async def test_what_a_log_holds_is_counted_by_its_frames_too(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    recorder = Recording(store, RecordSettings(("echo",), Durability("always")), LOG).of("echo")
    assert recorder is not None
    track = recorder.track(1)
    track.record(3, bytes(30))
    recorder.leave_out("behind", 4, 40)
    track.record(2, bytes(15))  # its head says two
    recorder.flush()
    await store.close()
    assert recording.count(tmp_path, "echo", 10) == recording.Counted(messages=5, missing=4, wrong=2)


@pytest.mark.parametrize("size", [0, 1501])
def test_what_cannot_be_measured_is_refused(size: int) -> None:
    with pytest.raises(Refusal, match="1 to 1500") as refused:
        recording.bench(size=size)
    assert refused.value.code is ExitCode.USAGE
