"""The ready messages of a queue whose messages have keys: so many of a key at a time, or keys by turns.

A *lane* has the messages of one key and one priority, by their numbers. The lanes that may give one stand in
line, a line for each priority. So a message costs what the lanes in line cost, however many wait in each. A
key of which as many are unacknowledged as may be is in no line, until one of these is released.

What has no key is never held up by others of its kind. Where keys take turns it is a lane like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice

from shared.queues.runs import Run
from shared.turns import taken_out

STALE_MIN = 64
"""So many entries that stand for nothing are not worth a rebuilt heap."""


class _Key:
    """One key: how many of its messages are unacknowledged, and its lanes by priority."""

    __slots__ = ("count", "lanes", "name", "unacked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        """How many of its messages are ready."""
        self.unacked = 0
        self.lanes: dict[int, _Lane] = {}


class _Lane:
    """The ready messages of a key and a priority. `count`: of messages. `place`: by which number the lane
    stands in a line; None: in none. `keeps_turn`: the next message is to take the turn that the last one
    had."""

    __slots__ = ("count", "keeps_turn", "key", "place", "priority", "runs")

    def __init__(self, key: _Key, priority: int) -> None:
        self.key = key
        self.priority = priority
        self.count = 0
        self.place: int | None = None
        self.keeps_turn = False
        self.runs: list[tuple[int, Run]] = []
        """A heap of runs by their first numbers. One that has no bodies any more was removed."""

    def __lt__(self, other: _Lane) -> bool:
        return self.key.name < other.key.name

    def first(self) -> Run:
        """The first run. Some must be there."""
        while not self.runs[0][1].bodies:
            heappop(self.runs)
        return self.runs[0][1]

    def upcoming(self, most: int) -> Iterator[Run]:
        """About the first of its runs, as many as that."""
        return (run for _, run in islice(self.runs, most) if run.bodies)

    def put(self, run: Run) -> None:
        heappush(self.runs, (run.first, run))
        self.count += len(run.bodies)

    def take(self, most: int) -> Run:
        run = self.first()
        count = len(run.bodies)
        if count <= most:
            heappop(self.runs)
            self.count -= count
            return run
        self.count -= most
        taken = run.cut(most)
        heapreplace(self.runs, (run.first, run))
        return taken

    def remove(self, run: Run) -> Run:
        whole = run.part(0, len(run.bodies))
        run.bodies = []
        self.count -= len(whole.bodies)
        if len(self.runs) > 2 * self.count + STALE_MIN:
            self.runs = [entry for entry in self.runs if entry[1].bodies]
            heapify(self.runs)
        return whole


class _InOrder:
    """Lanes of one priority, the one with the smallest number first."""

    __slots__ = ("_heap", "_standing")

    def __init__(self) -> None:
        self._heap: list[tuple[int, _Lane]] = []
        self._standing = 0

    def put(self, lane: _Lane) -> None:
        """A lane may give its first message; it may stand here already."""
        number = lane.first().first
        if lane.place == number:
            return
        if lane.place is None:
            self._standing += 1
        lane.place = number
        heappush(self._heap, (number, lane))
        if len(self._heap) > 2 * self._standing + STALE_MIN:
            self._heap = [entry for entry in self._heap if entry[1].place == entry[0]]
            heapify(self._heap)

    def front(self) -> _Lane | None:
        """The lane whose turn it is, if one stands here; it stays."""
        while self._heap:
            number, lane = self._heap[0]
            stands = lane.place == number
            if stands and (not lane.count or lane.first().first == number):
                return lane
            heappop(self._heap)
            if stands:  # what stood there was removed, or one before it came while the key was full
                self.put(lane)
        return None

    def pop(self) -> None:
        """The front lane stands here no more."""
        _, lane = heappop(self._heap)
        lane.place = None
        self._standing -= 1

    def most(self, wanted: int) -> int:
        """How many the front lane may give in its turn."""
        return wanted

    def __iter__(self) -> Iterator[_Lane]:
        """The lanes, about in order."""
        return (lane for number, lane in self._heap if lane.place == number)

    def __len__(self) -> int:
        return self._standing


class _InTurn:
    """Lanes of one priority that take turns, a message each."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: deque[_Lane] = deque()

    def put(self, lane: _Lane) -> None:
        if lane.place is None:
            lane.place = 0
            if lane.keeps_turn:
                self._lanes.appendleft(lane)
            else:
                self._lanes.append(lane)

    def front(self) -> _Lane | None:
        return self._lanes[0] if self._lanes else None

    def pop(self) -> None:
        self._lanes.popleft().place = None

    def __iter__(self) -> Iterator[_Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def most(self, wanted: int) -> int:
        return 1 if len(self._lanes) > 1 else wanted


class Keys:
    """Ready messages with keys, in the place of a `Ready` or `Priorities`. `count`: of messages, with those
    that may not be taken yet.

    `per_key`: how many of a key may be unacknowledged at a time; 0: any number. With 1, messages of a key
    and a priority are in order, however many consumers there are. `fair`: keys take turns. `priority_max`:
    the highest priority, which goes first; what is above counts as that.

    What is taken counts as unacknowledged until it is released.
    """

    __slots__ = ("_keys", "_lines", "_top", "_waiting", "count", "fair", "per_key", "ready_keys")

    in_order = False

    def __init__(self, per_key: int = 0, *, fair: bool = False, priority_max: int = 0) -> None:
        self.per_key = per_key
        self.fair = fair
        self.count = 0
        self.ready_keys = 0
        """How many keys have ready messages."""
        self._keys: dict[str, _Key] = {}
        self._waiting: set[int] = set()
        """Numbers of messages that wait for their time, and hold their key meanwhile."""
        line = _InTurn if fair else _InOrder
        self._lines: tuple[_InTurn | _InOrder, ...] = tuple([line() for _ in range(priority_max + 1)])
        self._top = 0
        """No lane of a higher priority stands in line."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Run]:
        """The runs, by priority and number: without regard to turns."""
        lanes = [lane for key in self._keys.values() for lane in key.lanes.values()]
        runs = [(-lane.priority, *entry) for lane in lanes for entry in lane.runs if entry[1].bodies]
        for _, _, run in sorted(runs):
            yield run

    @property
    def in_line(self) -> int:
        """How many lanes of the first priority may give a message, or a few more."""
        return len(self._lines[self._top])

    def first(self) -> Run | None:
        """The run of the next message that may be taken. None: none may."""
        lane = self._front()
        return None if lane is None else lane.first()

    def held_up(self) -> Run | None:
        """The first run of a key, about of the one that came first, whatever it has unacknowledged. None: of
        the first 32 none has messages."""
        lanes = (lane for key in islice(self._keys.values(), 32) for lane in key.lanes.values())
        return next((lane.first() for lane in lanes if lane.count), None)

    def upcoming(self, most: int) -> list[Run]:
        """The run of the next message that may be taken, and about those behind it, as many as that."""
        if self._front() is None:
            return []
        line = self._lines[self._top]
        of_each = max(most // max(len(line), 1), 1)
        return [run for lane in islice(line, most) if lane.count for run in lane.upcoming(of_each)]

    @property
    def first_priority(self) -> int:
        """The priority of that message. There must be one."""
        self._front()
        return self._top

    def add(self, run: Run, priority: int = 0, key: str = "") -> None:
        """Put messages at the place that their numbers give them."""
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _Key(key)
        priority = min(priority, len(self._lines) - 1)
        lane = found.lanes.get(priority)
        if lane is None:
            lane = found.lanes[priority] = _Lane(found, priority)
        lane.put(run)
        self._count(found, len(run.bodies))
        if not self._is_full(found):
            self._line_up(lane)

    requeue = add
    """Messages that were taken, and released, return to their places."""

    def first_number(self) -> int:
        """The smallest number. Some must be there."""
        return min(
            [lane.first().first for key in self._keys.values() for lane in key.lanes.values() if lane.count]
        )

    def clear(self) -> Iterator[list[Run]]:
        """As `Ready.clear`. What is unacknowledged still counts."""
        keys, self._keys = self._keys, {}
        self.count = self._top = self.ready_keys = 0
        self._lines = tuple([type(line)() for line in self._lines])
        for key in keys.values():
            if key.unacked:
                self.take_over(key.name, key.unacked)
        return (
            [run for _, key in some for lane in key.lanes.values() for _, run in lane.runs if run.bodies]
            for some in taken_out(keys.popitem, keys)
        )

    def take(self, most: int, *, keeps_turn: bool = False) -> Run:
        """Take the next messages, up to `most`, of one run. `first` must have found one. `keeps_turn`: they
        are not for a consumer, and the next of their key takes their turn."""
        lane = self._front()
        assert lane is not None
        lane.keeps_turn = keeps_turn
        line, key = self._lines[lane.priority], lane.key
        most = line.most(most)
        if self.per_key and key.name:
            most = min(most, self.per_key - key.unacked)
        run = lane.take(most)
        count = len(run.bodies)
        self._count(key, -count)
        line.pop()
        if self.per_key and key.name:
            key.unacked += count
        if not lane.count:
            self._drop(lane)
        elif not self._is_full(key):  # else `release` has it stand in line again
            line.put(lane)
        return run

    def take_oldest(self, most: int) -> Run:
        """Take messages from the smallest number on, up to `most` of one run, whatever their key may have.
        Some must be there. They count as unacknowledged, as all that is taken."""
        lane = self._oldest()
        run, key = lane.take(most), lane.key
        self._count(key, -len(run.bodies))
        if self.per_key and key.name:
            key.unacked += len(run.bodies)
        if not lane.count:
            self._drop(lane)
        return run

    def oldest(self) -> Run:
        """The run that `take_oldest` takes from."""
        return self._oldest().first()

    def _oldest(self) -> _Lane:
        lanes = [lane for key in self._keys.values() for lane in key.lanes.values() if lane.count]
        return min(lanes, key=lambda lane: lane.first().first)

    def release(self, key: str, count: int = 1) -> None:
        """So many messages of a key are not unacknowledged any more: they have left, or return."""
        found = self._keys.get(key)
        if found is None or not key or not self.per_key:
            return
        found.unacked = max(found.unacked - count, 0)
        for lane in (*found.lanes.values(),):
            if lane.count:
                self._line_up(lane)
            else:
                self._drop(lane)
        self._forget_if_idle(found)

    def take_over(self, key: str, count: int = 1) -> None:
        """So many messages of a key are unacknowledged that were never taken from here."""
        if key and self.per_key:
            self._keys.setdefault(key, _Key(key)).unacked += count

    def remove(self, run: Run, priority: int = 0, key: str = "") -> Run:
        """Take out a run that is here, whole; returns its messages, and the run itself has none any more."""
        lane = self._keys[key].lanes[min(priority, len(self._lines) - 1)]
        whole = lane.remove(run)
        self._count(lane.key, -len(whole.bodies))
        if not lane.count:
            self._drop(lane)
        return whole

    def find(self, number: int) -> Run | None:
        """The run that has this message; it stays."""
        found = self._find(number)
        return None if found is None else found[1]

    def take_out(self, number: int) -> Run | None:
        """Take a message, wherever it stands; its key does not count it. None: it is not here."""
        found = self._find(number)
        if found is None:
            return None
        lane, run = found
        message, rest = self.remove(run, lane.priority, lane.key.name).without(number)
        for part in rest:
            self.add(part, lane.priority, lane.key.name)
        return message

    def _find(self, number: int) -> tuple[_Lane, Run] | None:
        for key in self._keys.values():
            for lane in key.lanes.values():
                for first, run in lane.runs:
                    if first <= number < first + len(run.bodies):
                        return lane, run
        return None

    def waits(self, number: int, key: str, *, tried: bool) -> None:
        """A message that was released waits for its time. One that was tried holds its key meanwhile, if that
        may have one alone: else the next of the key would overtake it."""
        if tried and self.per_key == 1 and key and number not in self._waiting:
            self._waiting.add(number)
            self.take_over(key)

    def waits_no_more(self, number: int, key: str) -> None:
        """It does not wait any more."""
        if number in self._waiting:
            self._waiting.discard(number)
            self.release(key)

    def _count(self, key: _Key, more: int) -> None:
        """So many more of a key are ready, or fewer."""
        self.count += more
        before, key.count = key.count, key.count + more
        self.ready_keys += bool(key.count) - bool(before)

    def _is_full(self, key: _Key) -> bool:
        return 0 < self.per_key <= key.unacked and bool(key.name)

    def _line_up(self, lane: _Lane) -> None:
        self._lines[lane.priority].put(lane)
        if lane.priority > self._top:
            self._top = lane.priority

    def _front(self) -> _Lane | None:
        """The lane that gives the next message."""
        while True:
            line = self._lines[self._top]
            lane = line.front()
            if lane is None:
                if not self._top:
                    return None
                self._top -= 1
            elif not lane.count:
                line.pop()
                self._drop(lane)
            elif self._is_full(lane.key):
                line.pop()
            else:
                return lane

    def _drop(self, lane: _Lane) -> None:
        """A lane is empty, and stands in no line."""
        if lane.place is None:
            lane.key.lanes.pop(lane.priority, None)
            self._forget_if_idle(lane.key)

    def _forget_if_idle(self, key: _Key) -> None:
        if not (key.lanes or key.unacked):
            self._keys.pop(key.name, None)
