"""A flood of wrong passwords: who is logged in is served, and who comes meanwhile gets in."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers.commands import control
from shared.access import Rule, Secret, User
from tests.e2e.users import server_of
from tests.support.forked import quick_passwords
from tests.support.server import speak, until

ENTRY_SECONDS = 10.0
"""On a machine of its own some two; this one may have other things to do."""
FLOOD = 300
"""Connections that are open or wait to be accepted."""


@contextmanager
def _flood(address: tuple[str, int]) -> Iterator[None]:
    """Connections from two addresses, with three wrong passwords each; one that ends is replaced."""
    over = threading.Event()

    def opened(number: int) -> socket.socket:
        sock = socket.socket()
        sock.bind((f"127.0.1.{1 + number % 2}", 0))
        sock.connect(address)
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # refused already
            sock.send(b"AUTH ann wrong\n" * 3)
        return sock

    def flood() -> None:
        flood = [opened(number) for number in range(FLOOD)]
        while not over.wait(0.01):
            for number, sock in enumerate(flood):
                with contextlib.suppress(BlockingIOError):
                    with contextlib.suppress(ConnectionError):
                        if sock.recv(4096):
                            continue
                    sock.close()
                    flood[number] = opened(number)
        for sock in flood:
            sock.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_who_is_logged_in_is_served_in_a_flood_and_who_comes_meanwhile_gets_in(tmp_path: Path) -> None:
    with quick_passwords():
        secrets = {name: Secret.make(name.encode(), bytes(16)) for name in ("ann", "bob")}
    users = {name: User(name, (Rule.parse("*:*:*"),), secret) for name, secret in secrets.items()}

    def refused() -> bool:
        return 'reason="address_fails_often"' in str(control.request(server.data, "GET", "/metrics"))

    with (
        server_of(tmp_path, users, enable="logmq", BROKERS_ACCESS_REQUIRED="always") as server,
        socket.create_connection(server.address("logmq"), timeout=30) as ann,
    ):

        def say(data: bytes, answer: bytes) -> None:
            ann.sendall(data)
            assert ann.recv(len(answer), socket.MSG_WAITALL) == answer

        say(b"AUTH ann ann\n", b"OK\n")
        with _flood(server.address("logmq")):
            until(lambda: say(b"PING\n", b"PONG\n") is None and refused())
            began = time.monotonic()
            assert speak(server.address("logmq"), b"AUTH bob bob\nPING\n") == b"OK\nPONG\n"
            assert time.monotonic() - began < ENTRY_SECONDS
            say(b"PING\n", b"PONG\n")
