"""Sizes and durations as people write them."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.units import format_quantity, moment_ms, parse_quantity, parse_span_ms, readable, unit_of


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("64MiB", "bytes", 64 * 2**20),
        ("64 MiB", "bytes", 64 * 2**20),
        ("1.5GiB", "bytes", 3 * 2**29),
        ("10MB", "bytes", 10_000_000),
        ("3kB", "bytes", 3_000),
        ("3KB", "bytes", 3_000),
        ("2GB", "bytes", 2_000_000_000),
        ("2TB", "bytes", 2_000_000_000_000),
        ("2TiB", "bytes", 2**41),
        ("1h", "seconds", 3600),
        ("4096", "bytes", 4096),
        ("50ms", "seconds", 0.05),
        ("0.1s", "ms", 100),
        ("10", "seconds", 10),
        ("2min", "seconds", 120),
        ("7d", "ms", 7 * 86_400_000),
        ("1us", "ns", 1000),
    ],
)
def test_a_quantity_is_read_in_the_settings_own_unit(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", "bytes"),
        ("-1", "bytes"),
        ("ten", "bytes"),
        ("5ms", "bytes"),
        ("1KiB", "ms"),
        ("1M", "bytes"),
        ("5 MB 3", "bytes"),
        ("1.5.5", "ms"),
    ],
)
def test_what_is_no_quantity_is_refused_with_what_would_be(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="understood: 1"):
        parse_quantity(text, unit)


@pytest.mark.parametrize(
    ("text", "ms"), [("10m", 600_000), ("1.5 m", 90_000), ("10min", 600_000), ("2h", 7_200_000), ("5", 5)]
)
def test_a_length_of_time_knows_minutes_by_their_letter(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "m", "1M", "-1s", "9" * 5000])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"understood: 1ns|is a length of time"):
        parse_span_ms(text)


def test_a_part_of_a_whole_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of ms"):
        parse_quantity("1us", "ms")
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_quantity("0.3KiB", "bytes")


@given(st.integers(0, 2**63), st.sampled_from(["bytes", "ms", "ns", "seconds"]))
def test_a_whole_amount_survives_being_written_and_read(amount: int, unit: str) -> None:
    assert parse_quantity(format_quantity(amount, unit), unit) == amount


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2**26, "bytes", "64MiB"), (1000, "bytes", "1000"), (0.05, "seconds", "50ms"), (90.0, "seconds", "90s")],
)
def test_an_amount_is_written_in_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


def test_the_unit_is_in_the_name_or_in_the_metadata() -> None:
    @attrs.frozen
    class Settings:
        frame_bytes_max: int = 1
        retention_ms: int = 1
        budget: int = attrs.field(default=1, metadata={"unit": "bytes"})
        port: int = 1

    units = [unit_of(field) for field in attrs.fields(Settings)]
    assert units == ["bytes", "ms", "bytes", None]


NOW_MS = 1_795_324_814_000


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("now", NOW_MS),
        ("1h", NOW_MS - 3_600_000),
        ("30m ago", NOW_MS - 1_800_000),
        ("30 min ago", NOW_MS - 1_800_000),
        ("1.5d", NOW_MS - 36 * 3_600_000),
        ("250ms", NOW_MS - 250),
        ("90000000d", 0),
        ("1769860800000", 1_769_860_800_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00+01:00", 1_769_860_800_000),
        ("1960-01-01T00:00Z", 0),
    ],
)
def test_a_time_is_said_as_people_say_it(text: str, unix_ms: int) -> None:
    assert moment_ms(text, NOW_MS) == unix_ms


@pytest.mark.parametrize(
    "text", ["", "soon", "1w", "-1h", "1h ago or so", "2026-13-01", "9" * 400, "..h", "²"]
)
def test_what_is_no_time_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(ValueError, match="understood: "):
        moment_ms(text, NOW_MS)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1023, "bytes", "1023 B"),
        (1536, "bytes", "1.5 KiB"),
        (1024**2 - 1, "bytes", "1 MiB"),
        (83_597_496_320, "bytes", "77.9 GiB"),
        (5 * 1024**5, "bytes", "5,120 TiB"),
        (0, "ms", "0 s"),
        (0.000316, "seconds", "316 us"),
        (0.00116, "seconds", "1.16 ms"),
        (59.7, "seconds", "1 min"),
        (90_000, "ms", "1 min 30 s"),
        (604_800_000, "ms", "7 d"),
        (187_200, "seconds", "2 d 4 h"),
        (-5, "seconds", "-5 s"),
    ],
)
def test_an_amount_is_read_in_three_digits_or_so(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text
