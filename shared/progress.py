"""Progress of long work, on a terminal's standard error and nowhere else, so that output stays output."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Update = Callable[[int, int], None]
"""How many are done so far, and how many bytes they were."""


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
