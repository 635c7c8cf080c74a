"""Progress of long work, on a terminal's standard error and nowhere else, so that output stays output."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Update = Callable[[int, int], None]
"""How many are done so far, and how many bytes they were."""

MOMENT_SECONDS = 1.0
"""What takes no longer is waited for in silence."""


@contextmanager
def counting(what: str, stream: TextIO | None = None) -> Iterator[Update]:
    """Show how many of `what` are done, and how fast, while the block runs; gives the function to tell."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield lambda done, size: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    display = Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} {task.description}"),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
    with display:
        task = display.add_task(what, total=None, size="")

        def update(done: int, size: int) -> None:
            display.update(task, completed=done, size=f"{size / 1e6:,.1f} MB")

        yield update


@contextmanager
def waiting(what: str, stream: TextIO | None = None, after_seconds: float = MOMENT_SECONDS) -> Iterator[None]:
    """Show that `what` goes on, and since when, while the block runs: somebody else does the work."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    display = Progress(*columns, console=Console(file=stream), transient=True)
    display.add_task(what, total=None)
    timer = threading.Timer(after_seconds, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if display.live.is_started:
            display.stop()
