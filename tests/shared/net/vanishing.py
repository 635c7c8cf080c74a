"""Run in a network of its own by test_liveness, where 10.9.9.2 is ours at first and then vanishes."""

import trio

from shared.net.network import Network
from shared.net.settings import NetSettings
from tests.shared.net.served import Recorder, Sessions, make_group

SECONDS = 1.5
PATIENCE_SECONDS = 60.0  # without the limit, TCP itself would take a quarter of an hour


async def main() -> None:
    settings = NetSettings(user_timeout_seconds=SECONDS)
    sessions = Sessions()
    group = make_group(Network(settings), insecure=True)
    (pushed_to,) = group.bind_tcp("test", "10.9.9.1", 0, sessions, pushes=True)
    (asked_by,) = group.bind_tcp("test", "10.9.9.1", 0, sessions)

    async def connect(address: tuple[str, int]) -> tuple[trio.SocketStream, Recorder]:
        client = await trio.open_tcp_stream(*address, local_address="10.9.9.2")
        return client, await sessions.next()

    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        _vanishing, pushed = await connect(pushed_to)
        _asking, asked = await connect(asked_by)
        _full, full = await connect(pushed_to)
        full.connection.outbox.bound = 1 << 30
        full.connection.write(b"x" * 30_000_000)  # and nobody reads: the window closes
        await trio.sleep(2.5 * SECONDS)
        assert not full.connection.closed, "a living peer was ended"
        await trio.run_process(["ip", "addr", "del", "10.9.9.2/32", "dev", "lo"])
        pushed.connection.write(b"are you there?")
        asked.connection.write(b"are you there?")
        with trio.fail_after(PATIENCE_SECONDS):
            await pushed.lost.wait()
            await asked.lost.wait()
            await full.lost.wait()  # its window is closed, and it does not answer the probes any more
        assert group.counters.closed == {"unacknowledged": 2, "timed out": 1}, group.counters.closed
        nursery.cancel_scope.cancel()
    print("as promised")


if __name__ == "__main__":
    trio.run(main)
