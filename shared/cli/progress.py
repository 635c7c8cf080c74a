"""Progress of long work, on a terminal's standard error and nowhere else, so that output stays output."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

Update = Callable[[int, int], None]
"""Takes how many are done so far, and their bytes."""

MOMENT_SECONDS = 1.0
"""Work that is shorter than this shows no progress."""


@contextmanager
def progress(what: str, total: int | None = None, stream: TextIO | None = None) -> Iterator[Any]:
    """Show a bar while the block runs; yield a function that takes (done, total)."""
    columns = ("{task.description}", "BarColumn", "TaskProgressColumn", "TimeRemainingColumn")
    with _display(what, columns, stream, total=total) as tell:
        yield lambda done, total=None: tell(completed=done, total=total)


@contextmanager
def counting(what: str, stream: TextIO | None = None) -> Iterator[Update]:
    """Show how many of `what` are done, and how fast, while the block runs; yield the function that takes the
    counts."""
    columns = (
        *("SpinnerColumn", "{task.completed:,.0f} {task.description}", "{task.fields[size]}"),
        "TimeElapsedColumn",
    )
    with _display(what, columns, stream, size="") as tell:
        yield lambda done, size: tell(completed=done, size=f"{size / 1e6:,.1f} MB")


@contextmanager
def waiting(what: str, stream: TextIO | None = None, after_seconds: float = MOMENT_SECONDS) -> Iterator[None]:
    """Show that `what` goes on, and for how long, while the block runs. For work that another process
    does."""
    columns = ("SpinnerColumn", "{task.description}", "TimeElapsedColumn")
    with _display(what, columns, stream, after_seconds=after_seconds):
        yield


@contextmanager
def _display(
    what: str,
    columns: Sequence[str],
    stream: TextIO | None,
    *,
    total: int | None = None,
    after_seconds: float = 0.0,
    **fields: Any,
) -> Iterator[Callable[..., None]]:
    """Show a display of `columns` (rich's classes, or text formats); yield a function that takes changed
    values."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield lambda **_: None
        return
    from rich import progress as kinds
    from rich.console import Console

    made = [getattr(kinds, name)() if name.endswith("Column") else kinds.TextColumn(name) for name in columns]
    display = kinds.Progress(*made, console=Console(file=stream), transient=True)
    task = display.add_task(what, total=total, **fields)
    timer = threading.Timer(after_seconds, display.start)
    timer.daemon = True
    if after_seconds:
        timer.start()
    else:
        display.start()
    try:
        yield lambda **changes: display.update(task, **changes)
    finally:
        timer.cancel()
        if after_seconds:
            timer.join()
        if display.live.is_started:
            display.stop()
