"""The archive in an object store: killed between any two requests, answers lost, archivers that overtake."""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.folder import ArchiveFolder, ArchiveInUse
from brokers.pipeline.archiving.manifest import unpack
from brokers.pipeline.archiving.places import BucketPlace
from tests.pipeline.archive.model import Archiver, added, archived, check_done, check_readers, glob


class Killed(BaseException):
    """The process is no more."""


@attrs.define
class Watched:
    """A store that tells `before` of each request, and `after` of what it has done. Both may raise."""

    store: Any = attrs.field(factory=MemoryStore)
    before: Callable[[int, str], None] = lambda number, kind: None
    after: Callable[[int, str], None] = lambda number, kind: None
    requests: int = 0

    def __getattr__(self, kind: str) -> Any:
        def ask(*arguments: Any, **named: Any) -> Any:
            self.requests += 1
            number = self.requests
            self.before(number, kind)
            answer = getattr(self.store, kind)(*arguments, **named)
            self.after(number, kind)
            return answer

        return ask


class StoredPlace(BucketPlace):
    """A place in this very store."""

    def __init__(self, store: Any) -> None:
        super().__init__("memory://")
        object.__setattr__(self, "kept", store)

    def store(self) -> Any:
        return self.kept  # type: ignore[attr-defined]


def files(store: Any) -> BucketPlace:
    return StoredPlace(store)


def opened(store: Any) -> ArchiveFolder:
    folder = ArchiveFolder(files(store), "logmq", is_locked=False)
    folder.recover()
    return folder


def test_killed_between_any_two_requests_it_ends_with_each_record_once() -> None:
    for cut in itertools.count(1):
        watched = Watched()

        def before(number: int, kind: str, cut: int = cut) -> None:
            if number >= cut:
                raise Killed

        watched.before = before
        died = Archiver(files(watched), run=1, is_locked=False)
        try:
            died.go()
        except Killed:
            pass
        else:
            break
        there = files(watched.store)
        if died.acknowledged:
            check_readers(there, died.acknowledged, died.attempted)
        Archiver(there, run=2, is_locked=False).go()
        check_done(there)
    assert cut > 100


def test_a_commit_whose_answer_is_lost_is_found_to_be_made() -> None:
    watched = Watched()
    folder = opened(watched)

    def lost(number: int, kind: str) -> None:
        if kind == "put" and watched.requests == number:
            raise GenericError("connection reset")

    following = added(folder, 0, 10)
    watched.after = lost
    folder.commit(following)
    assert archived(folder.files, glob(folder.files)) == {"orders": [0]}


def test_a_commit_that_was_not_made_is_an_error_and_can_be_made_again() -> None:
    watched = Watched()
    folder = opened(watched)
    following = added(folder, 0, 10)

    def away(number: int, kind: str) -> None:
        if kind == "put":
            raise GenericError("503")

    watched.before = away
    with pytest.raises(OSError, match="503"):
        folder.commit(following)
    watched.before = lambda number, kind: None
    opened(watched).commit(attrs.evolve(following, version=3))


def test_whoever_opens_it_later_stops_the_one_before_and_keeps_what_that_one_has_committed() -> None:
    store = MemoryStore()
    first = opened(store)
    first.commit(added(first, 0, 10))
    waiting = added(first, 10, 20, token="b")  # its file is written
    second = opened(store)
    with pytest.raises(ArchiveInUse):
        first.commit(waiting)
    second.commit(added(second, 10, 30, token="c"))
    assert archived(second.files, glob(second.files)) == {"orders": [0, 10, 20]}
    with pytest.raises(ArchiveInUse):
        first.commit(waiting)


def commits_at(cut: int) -> bool:
    """Whether the one that opened it first commits at that request of another's opening."""
    store = MemoryStore()
    first = opened(store)
    first.commit(added(first, 0, 10))
    following = added(first, 10, 20, token="b")
    came: list[bool] = []

    def commit(number: int, kind: str) -> None:
        if number == cut and not came:
            came.append(True)
            try:
                first.commit(following)
            except ArchiveInUse:
                came.append(False)

    second = opened(Watched(store, before=commit))
    (log,) = second.manifest.logs.values()
    assert log.end == (20 if came == [True] else 10), cut
    second.commit(added(second, log.end, 40, token="c"))
    assert archived(second.files, glob(second.files)) == {"orders": [0, 10, 20, 30]}, cut
    return bool(came)


def test_a_commit_that_comes_while_another_opens_it_is_not_forgotten() -> None:
    cuts = list(itertools.takewhile(commits_at, itertools.count(1)))
    assert len(cuts) > 8


def test_one_that_was_stopped_amid_its_commit_removes_nothing_of_the_next() -> None:
    store = MemoryStore()
    second: list[ArchiveFolder] = []
    left: list[object] = []

    made: list[int] = []

    def overtake(number: int, kind: str) -> None:
        if kind == "put":
            made.append(number)
        elif kind == "list_with_delimiter" and made and not second:  # it has seen that it is the newest
            second.append(opened(store))
            left.append(added(second[0], 10, 20, token="b"))

    slow = Watched(store)
    first = opened(slow)
    following = added(first, 0, 10)
    slow.after = overtake
    first.commit(following)
    second[0].commit(left[0])  # type: ignore[arg-type]
    assert archived(files(store), glob(files(store))) == {"orders": [0, 10]}


def test_a_number_that_was_removed_long_ago_is_no_way_in() -> None:
    """The slow one sleeps over so many commits that the next number of its own is free again."""
    store = MemoryStore()
    slow = opened(store)
    late = added(slow, 0, 10, token="late")
    quick = opened(store)
    for at in range(0, 60, 10):
        quick.commit(added(quick, at, at + 10))
    assert not any(name.endswith(f"{late.version:012d}.json") for name in slow.files.names(names.MANIFESTS))
    with pytest.raises(ArchiveInUse):
        slow.commit(late)
    assert archived(quick.files, glob(quick.files)) == {"orders": [0, 10, 20, 30, 40, 50]}
    again = opened(store)
    assert again.manifest.version == quick.manifest.version + 1
    assert [log.end for log in again.manifest.logs.values()] == [60]


def test_two_openings_of_the_same_state_are_told_apart() -> None:
    store = MemoryStore()
    opened(store)
    there = files(store)
    opened(store)
    versions = there.names(names.MANIFESTS)
    data = [bytes(store.get(f"{names.MANIFESTS}/{name}").bytes()) for name in versions]
    assert len(set(data)) == len(data) == 2
    assert [found.version for found in map(unpack, data) if found] == [1, 2]
