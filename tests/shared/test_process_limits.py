"""What the system lets the process have."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from shared.process_limits import memory_limit_bytes


def test_memory_is_the_machines_unless_a_control_group_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_limit_bytes()
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
    assert memory_limit_bytes() == 32 << 20


def test_the_limit_on_address_space_counts_without_what_takes_no_memory() -> None:
    program = """
import resource
from shared.process_limits import memory_limit_bytes

resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
print(memory_limit_bytes() >> 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 100 < int(done.stdout) < 600 - 64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's malloc")
def test_freed_memory_is_kept_and_costs_no_page_faults_again() -> None:
    program = """
from resource import RUSAGE_SELF, getrusage
from shared.process_limits import keep_freed_memory

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(100):
        blocks = [b"x" * 200_000 for _ in range(4)]
        del blocks
    return getrusage(RUSAGE_SELF).ru_minflt - before

print(faults())
keep_freed_memory(32 << 20, 1 << 20)
print(faults())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 4000, "each of 400 blocks has 49 pages"
    assert kept < 1000
