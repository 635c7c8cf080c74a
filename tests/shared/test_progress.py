"""Progress shows on a terminal and nowhere else."""

import io
import threading

from shared.cli.progress import counting, waiting


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "export" in text:
            self.written.set()
        return super().write(text)


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


def test_who_waits_for_long_sees_what_for_and_who_does_not_sees_nothing() -> None:
    stream = Terminal()
    with waiting("export", stream, 0.0):
        assert stream.written.wait(60)
    quick, silent = Terminal(), io.StringIO()
    with waiting("peek", quick, 3600.0), waiting("peek", silent, 0.0):
        pass
    assert quick.getvalue() == silent.getvalue() == ""
