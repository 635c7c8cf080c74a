"""`brokers logs` and `brokers trace`: lines and copies of messages, as lists and as they come."""

import json
import socket
import threading
import time

import pytest

from brokers.commands import control
from brokers.commands.follow import followed, log_line
from brokers.errors import ExitCode, Failure
from tests.brokers.conftest import Run
from tests.support.server import START_SECONDS, Server, speak, until


def test_the_log_reads_as_on_the_servers_standard_error(command: Run, shared_server: Server) -> None:
    where = ("--data-dir", str(shared_server.data))

    def shown() -> list[str]:
        """Five of the last lines as text, and from their rows."""
        speak(shared_server.address("logmq"), b"PRODUCE logged x\nDELETE logged\n" * 5)
        code, out, _ = command("logs", "-n", "5", *where)
        assert code == ExitCode.OK
        rows = command("logs", "--json", "-n", "5", *where)[1].splitlines()
        lines = [*out.splitlines(), *(log_line(json.loads(row)) for row in rows)]
        assert len(lines) == 10
        return lines

    # Standard error leaves lines out while its reader is behind.
    until(lambda: all(line in shared_server.said for line in shown()))
    assert command("logs", "--level", "error", *where) == (ExitCode.OK, "", "")


def test_a_trace_shows_messages_as_they_pass_and_ends_with_the_last_that_is_asked_for(
    command: Run, shared_server: Server
) -> None:
    got: list[tuple[int, str, str]] = []
    words = ("trace", "traced.*", "--max", "2", "--data-dir", str(shared_server.data))
    tracer = threading.Thread(target=lambda: got.append(command(*words)))
    tracer.start()
    give_up = time.monotonic() + START_SECONDS
    while tracer.is_alive():  # messages from before it looks are not its business
        assert time.monotonic() < give_up
        speak(shared_server.address("logmq"), b"PRODUCE traced.by-command a\x1b[2Jb\n")
        tracer.join(0.1)
    code, out, _ = got[0]
    assert code == ExitCode.OK
    assert [line.split(" ", 1)[1] for line in out.splitlines()] == [
        r"logmq traced.by-command  6 B  a\x1b[2Jb"
    ] * 2


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rows_are_read_from_events_however_they_are_cut(chunk: int) -> None:
    events = (
        b': follows\n\nid: 3\ndata: {"id": 3}\n\nevent: missed\ndata: {"count": 5}\n\n:\n\n'
        b'id: 9\ndata: {"id": 9, "text": "\\u2028"}\n\n'
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(head)
                for at in range(0, len(events), chunk):
                    sock.sendall(events[at : at + chunk])

        server = threading.Thread(target=serve)
        server.start()
        rows: list[object] = []
        client = control.port_client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(Failure, match="has ended this") as refused:
            rows.extend(iter(followed(client, "logs", {})))
        server.join()
    assert refused.value.code == ExitCode.LOST
    assert rows == [{"id": 3}, {"missed": 5}, {"id": 9, "text": "\u2028"}]
