"""Globs over names, the same everywhere: `*` is any run of characters, `?` is one, all else is itself.

Only the patterns of settings, `[dms.queues]` and `[logmq.topics]`, have `[a-z]`, too (`fnmatch`).
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

WILD = re.compile(r"[*?[]")


def expression(glob: str, flags: re.RegexFlag = re.NOFLAG, *, sets: bool = False) -> re.Pattern[str]:
    """An expression that matches all of a name, from its first character on. `sets`: `[a-z]` is one.

    It never backtracks over more than one `*`, so a name costs its length for each glob.
    """
    return re.compile(translate(glob if sets else glob.replace("[", "[[]")), flags)


def matcher(globs: Iterable[str], *, sets: bool = False) -> Callable[[str], object]:
    """A function of a name that is truthy if one of the globs matches all of it."""
    # Names and beginnings, as most globs are, are compared all at once: a thousand take some 15 us.
    names, beginnings, others = set[str](), list[str](), list[str]()
    for glob in globs:
        if not WILD.search(glob):
            names.add(glob)
        elif not WILD.search(glob, 0, len(glob) - 1) and glob.endswith("*"):
            beginnings.append(glob[:-1])
        else:
            others.append(glob)
    beginning = tuple(beginnings)
    # fnmatch's expressions have named groups, which would clash in one joined expression.
    compiled = [expression(glob, sets=sets).match for glob in others]
    return lambda name: name in names or name.startswith(beginning) or any(match(name) for match in compiled)
