"""What a server pushes, over connections that are lost: who comes back, and who gives up."""

import pytest
import trio
import trio.testing

from shared.client.dial import Address, Disconnected, Unreachable
from shared.client.receiver import Receiver
from shared.client.reconnecting import keep_trying
from shared.client.retry import STOOD_SECONDS, Retry
from shared.client.trio_loop import trio_loop

ADDRESS = Address("host", 1, kind="test")


class Bytes(Receiver[bytes]):
    def _take(self, data: bytearray) -> tuple[list[bytes], int]:
        return [bytes(data)] if data else [], len(data)

    def _first_words(self) -> bytes:
        return b"it is me"


async def test_a_quiet_server_may_restart_as_often_as_it_likes(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[trio.abc.Stream] = []

    async def connect(_: Address) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        made.append(theirs)
        return ours

    monkeypatch.setattr("shared.client.trio_loop.open_stream", connect)
    async with trio_loop() as loop, trio.open_nursery() as nursery:
        receiver = Bytes(loop, ADDRESS, 30.0)
        await receiver.begin()
        found: list[bytes] = []

        async def take() -> None:
            found.append(await anext(receiver))

        nursery.start_soon(take)
        for _ in range(4):
            await trio.sleep(3600)
            await made[-1].aclose()
        await trio.sleep(3600)
        await made[-1].send_all(b"news")
    assert found == [b"news"]
    assert len(made) == 5


async def test_who_is_turned_away_at_once_gives_up_in_time(autojump_clock: trio.testing.MockClock) -> None:
    retry = Retry(30.0, trio.current_time())

    async def connect() -> None: ...

    async def be_turned_away() -> None:
        async with trio_loop() as loop:
            while True:
                await keep_trying(loop, ADDRESS, retry, connect, Disconnected("closed"))

    for _ in range(2):
        await trio.sleep(STOOD_SECONDS + 1)
        begun = trio.current_time()
        with pytest.raises(Unreachable, match="no connection stays: closed"):
            await be_turned_away()
        assert trio.current_time() - begun == pytest.approx(30)


async def test_who_stopped_waiting_while_it_connected_comes_back(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[trio.abc.Stream] = []
    away = False
    back = trio.Event()

    async def connect(_: Address) -> trio.abc.Stream:
        if away:
            raise ConnectionRefusedError("nobody listens")
        ours, theirs = trio.testing.memory_stream_pair()
        made.append(theirs)
        if len(made) == 2:
            back.set()
        return ours

    monkeypatch.setattr("shared.client.trio_loop.open_stream", connect)
    with trio.fail_after(600):
        async with trio_loop() as loop:
            receiver = Bytes(loop, ADDRESS, 30.0)
            await receiver.begin()
            away = True
            await made[-1].aclose()
            with trio.move_on_after(1):
                await anext(receiver)
            with pytest.raises(Unreachable, match="nobody listens"):
                await anext(receiver)
            with trio.move_on_after(1):
                await anext(receiver)
            away = False
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def speak() -> None:
                    await back.wait()
                    await made[-1].send_all(b"news")

                assert await anext(receiver) == b"news"
