"""What a connection holds, in runs or not, beside a plain dict."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from dms.engine import Queue
from dms.unacked import DeliveredRun, Delivery, Returning, Unacked
from tests.dms.world import World

RUNS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1)), min_size=1, max_size=8)


def queues() -> tuple[Queue, Queue]:
    world = World()
    peer = world.connect()
    peer.create("a")
    peer.create("b")
    one, other = world.engine.queues.values()
    return one, other


def filled(runs: list[tuple[int, int]]) -> tuple[Unacked[Queue], dict[bytes, Delivery[Queue]]]:
    both = queues()
    unacked, model = Unacked[Queue](), dict[bytes, Delivery[Queue]]()
    seq = 1
    for count, which in runs:
        ids = tuple(n.to_bytes(4) for n in range(seq, seq + count))
        bodies = [b"%d" % n for n in range(seq, seq + count)]
        unacked.add(DeliveredRun(ids, both[which], seq, bodies))
        model.update((ids[n], (both[which], seq + n, bodies[n], 1)) for n in range(count))
        seq += count
    return unacked, model


def same(unacked: Unacked[Queue], model: dict[bytes, Delivery[Queue]]) -> None:
    assert len(unacked) == len(model)
    assert dict(zip(unacked, chain(*unacked.pieces()), strict=True)) == model


@given(RUNS, st.data())
def test_whole_runs_go_as_they_came_and_all_else_one_by_one(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    unacked, model = filled(runs)
    same(unacked, model)
    while model:
        some = tuple(data.draw(st.lists(st.sampled_from(sorted(model)), min_size=1, max_size=6)))
        taken = unacked.pop_runs(some)
        if taken:
            assert tuple(each for run in taken for each in run.ids) == some
            assert [out for run in taken for out in run] == [model.pop(each) for each in some]
        elif len(set(some)) < len(some):
            same(unacked, model)
            assert unacked.pop_all(some) is None
        else:
            same(unacked, model)
            assert unacked.pop_all((*some, b"none")) is None
            same(unacked, model)
            assert unacked.pop_all(some) == [model.pop(each) for each in some]
        same(unacked, model)


def test_runs_side_by_side_are_taken_together_but_not_parts_of_them() -> None:
    unacked, model = filled([(2, 0), (3, 1)])
    ids = tuple(model)
    assert unacked.pop_runs(ids[:3]) == ()
    assert unacked.pop_runs(ids + ids[:2]) == ()
    same(unacked, model)
    assert [len(run) for run in unacked.pop_runs(ids)] == [2, 3]
    assert not unacked


def test_one_of_a_run_can_be_asked_for() -> None:
    unacked, model = filled([(4, 0)])
    ids = tuple(model)
    assert unacked.get(ids[2]) == model[ids[2]]
    assert unacked.pop(ids[1]) == model.pop(ids[1])
    assert unacked.pop(ids[1]) is None
    same(unacked, model)
    unacked.add_all(ids[:1], [model[ids[0]]])
    same(unacked, model)


def test_of_many_runs_only_that_is_taken_apart_of_which_a_part_is_asked_for() -> None:
    unacked, model = filled([(4, 0), (3, 1), (5, 0)])
    ids = tuple(model)
    unacked.pop(ids[5])
    assert (len(unacked.single), unacked.in_runs) == (2, 9)
    assert [len(run) for run in unacked.pop_runs(ids[:4])] == [4]
    assert unacked.pop_all([ids[11], ids[4]]) == [model[ids[11]], model[ids[4]]]
    assert (len(unacked.single), unacked.in_runs) == (5, 0)
    assert unacked.get(ids[0]) is None


@given(RUNS, st.data())
def test_what_has_not_returned_is_all_but_the_first(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    unacked, model = filled(runs)
    unacked.pop(next(iter(model)))
    returning = Returning(unacked)
    all_ = list(returning)
    assert sorted(seq for _, seq, _, _ in all_) == list(range(2, len(model) + 1))
    returning.back = data.draw(st.integers(0, len(all_)))
    assert list(returning) == all_[returning.back :]
