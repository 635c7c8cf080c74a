"""Progress shows on a terminal and nowhere else."""

import io

from shared.progress import counting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_no_terminal_is() -> None:
    stream = io.StringIO()
    with counting("messages", stream) as update:
        update(1000, 5_000_000)
    assert stream.getvalue() == ""


def test_a_terminal_sees_how_much_is_done() -> None:
    stream = Terminal()
    with counting("messages", stream) as update:
        update(1234, 5_600_000)
    assert "1,234 messages" in stream.getvalue()
    assert "5.6 MB" in stream.getvalue()
