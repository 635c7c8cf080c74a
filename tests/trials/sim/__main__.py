"""`python -m tests.trials.sim`: many seeds, or one of them again with all its events."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tests.trials.sim.bugs import BUGS, find
from tests.trials.sim.fault_profiles import FAULT_PROFILES
from tests.trials.sim.run import Verdict, play

EVENTS_SHOWN = 60


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.profile, options.trace, options.bug)
    failed = _many(range(options.first, options.first + options.seeds), options.profile)
    missed = 0 if options.no_bugs else _planted()
    return 1 if failed or missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="one seed again")
    parser.add_argument("--trace", action="store_true", help="print its events as they happen")
    parser.add_argument("--bug", choices=sorted(BUGS), help="with this bug planted")
    parser.add_argument("--profile", choices=FAULT_PROFILES, help="runs of this profile only")
    parser.add_argument("--no-bugs", action="store_true", help="leave the planted bugs out")
    return parser


def _one(seed: int, profile: str | None, trace: bool, bug: str | None) -> int:
    if bug and profile is None:
        profile = BUGS[bug].profile
    verdict = play(seed, profile=profile, echo=trace, bug=BUGS[bug].planted() if bug else None)
    if verdict.broken is not None:
        _report(
            verdict,
            (f" --bug {bug}" if bug else "") + (f" --profile {profile!r}" if profile and not bug else ""),
        )
        return 1
    print(
        f"seed {seed}: kept. {verdict.events} events, trace {verdict.digest}; {verdict.lives} lives, "
        f"{verdict.messages_acknowledged} of {verdict.messages_sent} messages acknowledged, "
        f"{verdict.disk_operations} disk operations"
    )
    return 0


def _many(seeds: Sequence[int], profile: str | None) -> int:
    began = time.monotonic()
    verdicts = []
    failed = 0
    for number, seed in enumerate(seeds):
        verdict = play(seed, profile=profile)
        verdicts.append(verdict)
        if verdict.broken is not None:
            failed += 1
            _report(verdict, f" --profile {profile!r}" if profile else "")
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(seeds)} seeds", end="", file=sys.stderr)
    took = time.monotonic() - began
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    print(
        f"{len(seeds)} seeds, {failed} broken; {took:.1f} s, {len(seeds) / took:.1f} seeds/s\n"
        f"  {sum(v.lives for v in verdicts)} lives of the server, "
        f"{sum(v.seconds for v in verdicts):.0f} virtual seconds, {sum(v.events for v in verdicts)} events, "
        f"{sum(v.disk_operations for v in verdicts)} disk operations\n"
        f"  {sum(v.messages_acknowledged for v in verdicts)} of {sum(v.messages_sent for v in verdicts)} "
        f"messages acknowledged, {sum(v.records_checked for v in verdicts)} records read and checked"
    )
    return failed


def _report(verdict: Verdict, options: str = "") -> None:
    print(f"seed {verdict.seed} is broken: {verdict.broken}")
    print(f"  its last events (of {verdict.events}, trace {verdict.digest}):")
    for event in verdict.last_events[-EVENTS_SHOWN:]:
        print(f"    {event}")
    print(f"  again: python -m tests.trials.sim --seed {verdict.seed} --trace{options}")


def _planted() -> int:
    """Plant each bug; how many of them were not found."""
    missed = 0
    for name, bug in BUGS.items():
        began = time.monotonic()
        verdict, tried = find(bug)
        took = time.monotonic() - began
        if verdict is None:
            missed += 1
            print(f"planted bug {name}: NOT FOUND in {tried} seeds ({took:.1f} s)")
        else:
            print(
                f"planted bug {name}: found by seed {verdict.seed}, {tried} of at most {bug.seeds_max} tried "
                f"({took:.1f} s)\n  {(verdict.broken or '').strip().splitlines()[-1]}"
            )
    return missed


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    sys.exit(main(sys.argv[1:]))
