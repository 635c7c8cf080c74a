"""`python -m brokers`, and the console script `brokers`."""

import sys

from brokers.cli import run


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
