"""`python -m brokers`, and the console script `brokers`: the process itself, before anything is imported."""

import gc
import io
import os
import sys

from brokers.termination import Termination


def main() -> None:
    _claim_standard_descriptors()
    buffer_standard_output()
    # A locale that is not UTF-8 shows the characters that it lacks by their numbers.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("COLUMNS", "").strip("0"):  # a terminal without a size: no width to fold help to
        os.environ.pop("COLUMNS", None)
    try:
        Termination().hear()
        from brokers.commands.cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while we were still importing
        code = 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in (__package__, "shared"):
            raise
        lacking = f"the commands need {error.name}, which is not installed"
        extra = "spark" if error.name == "pyarrow" else "serve"
        sys.exit(f"brokers: {lacking}; pip install 'brokers[{extra}]' brings it")
    gc.freeze()  # Python collects once more as it ends, and would walk all that goes anyway
    sys.exit(code)


def _claim_standard_descriptors() -> None:
    """Open closed standard descriptors, or a data file could become number 2, and get our error lines."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # all three stay open until the end
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def buffer_standard_output() -> None:
    """Buffer standard output, even if Python was started not to (PYTHONUNBUFFERED).

    Without a buffer, Python drops what a short write did not take. Then a reader that leaves after half of a
    large answer, or a full disk, would be no error. Output is not delayed: whoever shows something flushes.
    """
    out = sys.stdout
    if isinstance(out.buffer, io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115
            out.fileno(), "w", encoding=out.encoding, errors=out.errors, closefd=False
        )


if __name__ == "__main__":
    main()
