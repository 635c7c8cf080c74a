"""`make trial-neighbours`: as many clients of DMS as there may be, and what the bad ones cost the others.

The others' p99 stays within twice of what it is without. The server is the real one, in its own process. 252
clients put messages into a queue and take them out, one at a time each; in every second round there are
beside them, in another process, one that vanishes amid frames, one that asks and never reads,
one that sends a byte a second, and one that just fills the last place; the 257th is told. The rounds take
turns, so that a busy machine is busy for both.
"""

import argparse
import contextlib
import socket
import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

import attrs

from brokers.bench.dms import QUEUE, dms_talk, make_queues
from brokers.bench.load import Measured, run
from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import counter, until
from tests.trials import outcomes
from tests.trials.serving import TrialServer
from tests.trials.strangers import Address, beside

_GOOD = 252
_BAD = 4
_CLIENTS_MAX = _GOOD + _BAD
_RATIO_MAX = 2.0
_RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER: closing resets."""


@attrs.define
class Bad:
    """What the bad ones did."""

    vanished: int = 0
    unread_bytes: int = 0
    trickled_bytes: int = 0
    refused: str = ""
    """What the 257th was told."""


def _be_bad(begun: Event, over: Event, address: Address) -> Bad:
    """Each in a thread; what they did."""
    seen = Bad()
    whole = spec.frame(spec.PRODUCE, 1, spec.name(QUEUE) + b"x" * 100)

    def vanish() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(ValueError), SpecClient(address) as client:
                # Refused where the server has not yet noticed that the last one has gone.
                client.send(whole[: 1 + seen.vanished * 7 % (len(whole) - 1)])
                if seen.vanished % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                seen.vanished += 1

    def never_read() -> None:
        asking = spec.frame(spec.LIST, 1) * 500
        with SpecClient(address) as client:
            client.socket.settimeout(0.1)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    seen.unread_bytes += client.socket.send(asking)

    def trickle() -> None:
        with SpecClient(address) as client:
            for byte in whole:
                client.send(bytes([byte]))
                seen.trickled_bytes += 1
                if over.wait(1.0):
                    return

    threads = [threading.Thread(target=bad) for bad in (vanish, never_read, trickle)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    return seen


def _257th(address: Address) -> str:
    """All places are taken, one more comes; the text it is refused with."""
    with contextlib.ExitStack() as stack:
        for _ in range(_CLIENTS_MAX):
            stack.enter_context(SpecClient(address))
        with SpecClient(address, greet=False) as refused:
            refused.send(spec.frame(spec.HANDSHAKE, 1))
            (reply,) = refused.rest()
    return f"status {reply[1]}, {reply[3].decode()}"


def trial(place: Path, seconds: float, rounds: int) -> tuple[list[Measured], list[Measured], Bad]:
    """The rounds without and with the bad ones, and what these did in all."""
    (place / "brokers.toml").write_text("[dms]\ndepth = 1000000\n")
    arguments = ("--enable", "dms", "--config", str(place / "brokers.toml"))
    quiet, disturbed, did = [], [], Bad()
    with TrialServer(place, place / "data", *arguments) as server:
        address = server.address("dms")
        make_queues(address, [QUEUE, *(f"{number}".ljust(60, "-") for number in range(100))])

        def all_gone() -> None:
            until(lambda: counter(server.data, 'connections{protocol="dms"}') == 0)

        def measured() -> Measured:
            return run(address, [dms_talk(100, 1) for _ in range(_GOOD)], seconds)

        did.refused = _257th(address)
        for _ in range(rounds):
            all_gone()
            quiet.append(measured())
            all_gone()
            with beside(_be_bad, address) as end, SpecClient(address):
                disturbed.append(measured())
                seen = end()
            did.vanished += seen.vanished
            did.unread_bytes += seen.unread_bytes
            did.trickled_bytes += seen.trickled_bytes
    return quiet, disturbed, did


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.trials.neighbours", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="with and without the bad ones, each")
    options = parser.parse_args(arguments)
    with outcomes.passing_place("neighbours") as place:
        quiet, disturbed, did = trial(place, options.seconds, options.rounds)

    def middle(found: Sequence[Measured], figure: Callable[[Measured], float]) -> float:
        return statistics.median(map(figure, found))

    before, after = middle(quiet, lambda one: one.p99_us), middle(disturbed, lambda one: one.p99_us)
    print(
        f"{_GOOD} clients alone: {middle(quiet, lambda one: one.rate):,.0f} messages a second, "
        f"median {middle(quiet, lambda one: one.median_us) / 1000:.1f} ms, p99 {before / 1000:.1f} ms",
        f"beside the bad ones: {middle(disturbed, lambda one: one.rate):,.0f} messages a second, "
        f"median {middle(disturbed, lambda one: one.median_us) / 1000:.1f} ms, p99 {after / 1000:.1f} ms: "
        f"{after / before:.2f} times",
        f"{did.vanished:,} vanished amid a frame, {did.unread_bytes:,} bytes were asked by who never read, "
        f"{did.trickled_bytes} bytes came a second apart; the {_CLIENTS_MAX + 1}th was told: {did.refused}",
        sep="\n",
    )
    return outcomes.told([f"{_RATIO_MAX:g} times are promised"] if after > _RATIO_MAX * before else [])


if __name__ == "__main__":
    sys.exit(main())
