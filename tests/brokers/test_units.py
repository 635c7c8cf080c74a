"""Sizes and durations as people write them."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.units import format_quantity, parse_quantity, unit_of


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
