"""What the system lets the process have."""

from pathlib import Path

import pytest

from shared.process_limits import memory_bytes


def test_memory_is_the_machines_unless_a_control_group_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_bytes()
    assert whole > 64 << 20
    files = {
        "/proc/self/cgroup": "0::/brokers/serve\n",
        "/sys/fs/cgroup/brokers/serve/memory.max": "max\n",
        "/sys/fs/cgroup/brokers/memory.max": "33554432\n",
    }

    def read_text(path: Path) -> str:
        try:
            return files[str(path)]
        except KeyError:
            raise FileNotFoundError(str(path)) from None

    monkeypatch.setattr(Path, "read_text", read_text)
    assert memory_bytes() == 32 << 20
