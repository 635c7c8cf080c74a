"""Tasks beside a block end with it, and what the block raises stays what it is."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio
import trio.testing

from shared.client.nursery import open_nursery


class Task:
    """It runs until it is cancelled."""

    ended = False

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ended = True


async def test_the_tasks_end_with_the_block() -> None:
    task = Task()
    async with open_nursery() as nursery:
        nursery.start_soon(task.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not task.ended
    assert task.ended


async def test_an_error_of_the_block_comes_as_it_is() -> None:
    task = Task()

    async def block() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.testing.wait_all_tasks_blocked()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await block()
    assert task.ended


async def test_a_generator_that_is_closed_within_ends_the_tasks_in_order() -> None:
    task = Task()

    async def numbers() -> AsyncGenerator[int, None]:
        async with open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.testing.wait_all_tasks_blocked()
            yield 1

    async with aclosing(numbers()) as found:
        assert await anext(found) == 1
    assert task.ended


async def test_an_error_of_a_task_ends_the_block_and_comes_in_a_group() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("a bug")

    async def block() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as raised:
        await block()
    assert raised.group_contains(KeyError, match="a bug")
