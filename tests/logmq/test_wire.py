"""The grammar: what is a request, a number, a name; and what a peer is shown of its mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmq import wire
from logmq.wire import Code, Refusal
from shared import errors


@given(st.binary(max_size=300))
def test_any_line_is_a_request_or_a_refusal_of_one_printable_line(line: bytes) -> None:
    try:
        word, fields = wire.split_request(line)
    except Refusal as refusal:
        said = refusal.line
        assert said.startswith(b"ERR ")
        assert said.endswith(b"\n")
        assert said.count(b"\n") == 1
        assert said[:-1].decode("ascii").isprintable()
        assert len(said) < 300
    else:
        request = wire.REQUESTS[word]
        assert request.least <= len(fields) <= request.most


@given(st.integers(0, 2**63 - 1), st.integers(0, 30))
def test_numbers_are_decimal_digits_leading_zeros_allowed(value: int, zeros: int) -> None:
    assert wire.number_untrusted(b"0" * zeros + b"%d" % value, "offset") == value


@given(st.one_of(st.binary(max_size=30), st.integers(min_value=2**63).map(lambda value: b"%d" % value)))
def test_anything_else_is_no_number(field: bytes) -> None:
    if field.isdigit() and int(field) <= wire.NUMBER_MAX:
        assert wire.number_untrusted(field, "offset") == int(field)
    else:
        with pytest.raises(Refusal, match=r"^SYNTAX "):
            wire.number_untrusted(field, "offset")


@given(st.binary(max_size=210))
def test_names_are_made_of_the_allowed_characters(name: bytes) -> None:
    allowed = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
    good = 1 <= len(name) <= 200 and name[:1] != b"." and set(name) <= set(allowed)
    for check in (wire.topic_untrusted, lambda name: wire.name_untrusted(name, "group")):
        if good:
            assert check(name) == name.decode()
        else:
            with pytest.raises(Refusal):
                check(name)


@pytest.mark.parametrize("name", [b"orders\n", b"a\0", b"..", b"../x", b"a/b", b"\xc3\xa9"])
def test_no_name_reaches_beyond_its_folder(name: bytes) -> None:
    with pytest.raises(Refusal, match="BAD_TOPIC"):
        wire.topic_untrusted(name)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.OutOfRange(7), b"ERR OUT_OF_RANGE the first kept offset is 7\n"),
        (errors.NotARecord(7), b"ERR BAD_OFFSET not the start of a record; the nearest below is 7\n"),
        (errors.LogDeleted(), b"ERR NO_TOPIC the topic was deleted\n"),
        (
            errors.CorruptRecord("logmq/t.log", 7),
            b"ERR STORAGE damaged bytes at offset 7; see brokers fsck\n",
        ),
        (errors.StoreFull("no space\nleft"), b"ERR STORAGE no space left\n"),
        (errors.StoreClosed(), b"ERR STORAGE StoreClosed\n"),
        (errors.BucketAway("no answer\nyet"), b"ERR BUCKET no answer yet\n"),
    ],
)
def test_every_error_of_the_store_has_its_line(error: errors.StoreError, line: bytes) -> None:
    assert wire.refusal_for(error).line == line


def test_the_codes_are_those_of_the_protocol() -> None:
    assert set(Code) == {
        "SYNTAX",
        "UNKNOWN_COMMAND",
        "BAD_TOPIC",
        "BAD_OFFSET",
        "OUT_OF_RANGE",
        "NO_TOPIC",
        "TOO_LARGE",
        "NO_COMMIT",
        "STORAGE",
        "BUCKET",
        "LIMIT",
        "DENIED",
    }
