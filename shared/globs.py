"""Globs over names, the same everywhere: `*` is any run of characters, `?` is one, all else is itself.

Only the patterns of settings, `[dms.queues]` and `[logmq.topics]`, have `[a-z]`, too (`fnmatch`).
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import translate


def expression(glob: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """An expression that matches all of a name, from its first character on.

    It never backtracks over more than one `*`, so a name costs its length for each glob.
    """
    return re.compile(translate(glob.replace("[", "[[]")), flags)


def matcher(globs: Iterable[str]) -> Callable[[str], object]:
    """A function of a name that is truthy if one of the globs matches all of it."""
    # fnmatch's expressions have named groups, which would clash in one joined expression.
    compiled = [expression(glob).match for glob in globs]
    if not compiled:
        return lambda _: None
    if len(compiled) == 1:
        return compiled[0]
    return lambda name: any(match(name) for match in compiled)
