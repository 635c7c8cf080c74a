"""What is in a pipe is waited for until it is read, and a reader that has left is noticed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from shared.cli.output_reader import OutputReader


@contextmanager
def piped() -> Iterator[tuple[int, int]]:
    """Standard output is a pipe: where it is read, where it is written."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stdout, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield reader, writer


async def test_what_others_have_written_before_is_waited_for_as_well() -> None:
    with piped() as (reader, writer):
        os.write(writer, b"x" * 20_000)  # more than a page: the pipe cannot be made narrow yet
        taken: list[int] = []

        async def wait() -> None:
            await OutputReader().wait_taken()
            taken.append(len(taken))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
                assert not taken
                os.read(reader, 5_000)
        assert taken
        os.close(reader)


async def test_a_reader_that_leaves_before_it_has_taken_all_is_noticed() -> None:
    with piped() as (reader, writer):
        shown = OutputReader()
        await shown.wait_taken()
        os.write(writer, b"a message")
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            await shown.wait_taken()


async def test_what_was_taken_is_taken_though_the_reader_has_left_since() -> None:
    with piped() as (reader, writer):
        shown = OutputReader()
        await shown.wait_taken()
        os.write(writer, b"a message")
        os.read(reader, 100)
        os.close(reader)
        await shown.wait_taken()
        with pytest.raises(BrokenPipeError):
            await shown.wait_left()


def test_a_file_is_given_all_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        shown = OutputReader()
        assert list(shown.portions([1, 2])) == [[1, 2]]
        trio.run(shown.wait_taken)
        trio.run(shown.wait_left)
