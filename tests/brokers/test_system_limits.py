"""A system that allows little: a start that is refused says what is needed, and else everything is served."""

import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.errors import ExitCode
from tests.brokers.conftest import Run
from tests.support.server import NotReadyError, Server


def limited(folder: Path, files: int) -> Server:
    """A server that may have so many files open. It answers before the disk has what it is told."""
    prefix = ("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh")
    return Server(folder, prefix=prefix, environ={"BROKERS_SERVE_DURABILITY": "none"})


def test_too_few_open_files_are_a_refusal_that_says_how_many_it_takes(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError) as refused:
        limited(tmp_path, 100).start()
    assert refused.value.code == ExitCode.CONFIGURATION
    assert "may open 100 files, and needs 256 at least" in refused.value.said
    assert refused.value.said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_with_few_open_files_half_of_them_can_connect_and_all_logs_are_served(tmp_path: Path) -> None:
    with limited(tmp_path, 256) as server, ExitStack() as stack:
        assert "few can connect" in server.said
        assert "connections_max=128" in server.said
        peers = []
        for number in range(128):
            peer = stack.enter_context(socket.create_connection(server.address("logmq")))
            peers.append(stack.enter_context(peer.makefile("rwb")))
            peers[-1].write(b"PRODUCE topic%d hello\n" % number)
            peers[-1].flush()
        for peer_file in peers:
            assert peer_file.readline() == b"OK 0\n"
        assert server.stop() == ExitCode.OK


def test_where_no_thread_can_be_started_that_is_one_line(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    code, out, said = command("serve", "--data-dir", str(tmp_path / "data"))
    assert (code, out) == (ExitCode.FAILED, "")
    assert said == (
        "brokers: no thread can be started: raise the limit on processes and threads "
        "(ulimit -u, or TasksMax= in a systemd unit)\n"
    )
