"""Where the levels of one name stand, for a walk that is at several places of it at once.

A *place* is how many levels are read, written as the bit of that number: a set of places is an integer.
"""


class Places:
    """`levels`: the places that each level stands behind. `last`: the place of the last level.

    `every`: the set of all places, that behind the last level among them.
    """

    __slots__ = ("_name", "_rests", "_separator", "every", "last", "levels")

    def __init__(self, name: bytes, separator: bytes) -> None:
        self._name = name
        self._separator = separator
        self._rests: dict[bytes, int] | None = None
        self.levels: dict[bytes, int] = {}
        place = 1
        for level in name.split(separator):
            self.levels[level] = self.levels.get(level, 0) | place
            place <<= 1
        self.last = place >> 1
        self.every = 2 * place - 1

    @property
    def rests(self) -> dict[bytes, int]:
        """The place of each rest. Together they take the square of a name, which has some hundred bytes."""
        if self._rests is None:
            self._rests = {}
            place = 1
            rest = self._name
            while place <= self.last:
                self._rests[rest] = place
                rest = rest.partition(self._separator)[2]
                place <<= 1
        return self._rests

    def place_of_rest(self, rest: bytes) -> int:
        """The set of the one place where the name goes on as `rest`, or the empty set."""
        return self.rests.get(rest, 0) if self._name.endswith(rest) else 0
