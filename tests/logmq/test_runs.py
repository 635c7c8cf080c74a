"""Every short cut gives what the plain loop gives, or says that it does not apply."""

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logmq import runs
from tests.logmq.world import records


def record_starts(data: bytes) -> Iterable[tuple[int, int]]:
    """Where each record begins and ends."""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        assert end <= len(data), "not whole records"
        yield at, end
        at = end


WORD = b"PRODUCE t "
SIZE_MAX = 5000

messages = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"a", b"ab", b"PRODUCE t ", b"\x00\x00\x00\x0a", b"x" * 10, b"x" * 266, b"y" * 4097]
    ),
)
same_sizes = st.integers(0, 12).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)
payloads = st.one_of(st.lists(messages, min_size=1, max_size=12), same_sizes)


def slowly_produced(lines: bytes) -> list[bytes] | None:
    """What `runs.produced` must find, line by line. One line is no run."""
    found = []
    if lines.count(b"\n") == 1 or lines.find(b"\n") - len(WORD) > runs.LINE_BYTES_MAX:
        return None
    for line in lines[:-1].split(b"\n"):
        if not line.startswith(WORD) or b"\r" in line or len(line) - len(WORD) > SIZE_MAX:
            return None
        found.append(line[len(WORD) :])
    return found


def slow_ok_lines(first: int, sizes: Sequence[int]) -> bytes:
    lines = b""
    for size in sizes:
        lines += b"OK %d\n" % first
        first += 4 + size
    return lines


def slow_message_lines(data: bytes, offset: int) -> bytes:
    return b"".join(
        b"MESSAGE %d %d %b\n" % (offset + at, end - at - 4, data[at + 4 : end])
        for at, end in record_starts(data)
    )


@given(
    st.lists(st.one_of(messages, st.just(b"\nPRODUCE t ")), min_size=1, max_size=12) | same_sizes,
    st.integers(0, 2**62),
)
@example(
    [b"a\nPRODUCE t b", b"x" * 23], 0
)  # lines of unlike length with ends where like ones would have them
@example([b"a\nQUIT", b"b\nPING"], 0)
@example([b"1234567890"] * 5, 7)  # the header itself holds an LF
@example([b"x" * (SIZE_MAX + 1)] * 2, 7)
def test_a_run_is_taken_exactly_when_every_line_belongs_to_it(bodies: list[bytes], first: int) -> None:
    lines = b"".join(WORD + body + b"\n" for body in bodies)
    expected = slowly_produced(lines)
    run = runs.produced(lines, WORD, b"\n" + WORD, SIZE_MAX)
    if expected is None:
        assert run is None
        return
    assert run is not None
    blob, count, lengths = run
    assert blob == records(*expected)
    assert count == len(expected)
    assert runs.ok_lines(first, count, lengths) == slow_ok_lines(first, [len(body) for body in expected])


@given(payloads)
@example([b"z" * 5000, b""])
def test_encoding_gives_records_and_their_lengths(bodies: list[bytes]) -> None:
    assert runs.encode(bodies) == (records(*bodies), [4 + len(body) for body in bodies])


@given(payloads, st.integers(0, 2**62))
@example([b"\x00\x00\x00\x04", b"abcd", b"\x00\x00\x00\x04", b"efgh", b"ijkl"], 3)
@example([b"abcd", b"\x04" * 260], 0)  # only the last byte of the headers is the same at every stride
def test_message_lines_are_those_of_the_plain_loop(bodies: list[bytes], offset: int) -> None:
    data = records(*bodies)
    assert runs.message_lines(data, offset) == (slow_message_lines(data, offset), len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "AT_ONCE", 2)
        part = records(*bodies[:2])
        assert runs.message_lines(data, offset) == (slow_message_lines(part, offset), len(part))


@given(st.lists(messages, min_size=1, max_size=12) | same_sizes, st.binary(max_size=30), st.booleans())
@example([b"ab", b"ab", b"abc", b"ab"], b"", False)
@example([b"APPEND t 9\n", b"123456789"] * 3, b"APPEND t 2\n", False)
def test_appends_with_the_first_ones_line_are_a_run(bodies: list[bytes], rest: bytes, other: bool) -> None:
    lines = [b"APPEND t %d\n" % len(body) for body in bodies]
    if other:
        lines[-1] = lines[-1].replace(b"t", b"u")
    data = b"".join(line + body for line, body in zip(lines, bodies, strict=True)) + rest
    run = list(itertools.takewhile(lambda pair: pair[0] == lines[0], zip(lines, bodies, strict=True)))
    found, count = runs.appended(data, len(lines[0]), len(lines[0] + bodies[0]))
    assert found.startswith(records(*(body for _, body in run)))
    assert count == len(run) if not rest else count >= len(run)
