"""What a connection holds, in runs or not, beside a plain dict."""

from hypothesis import given
from hypothesis import strategies as st

from shared.queues.runs import Run
from shared.queues.unacked import Unacked

RUNS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from("ab")), min_size=1, max_size=8)
Model = dict[bytes, tuple[str, int, bytes]]


def filled(runs: list[tuple[int, str]]) -> tuple[Unacked[bytes, str], Model]:
    unacked, model = Unacked[bytes, str](), Model()
    seq = 1
    for count, queue in runs:
        ids = tuple(n.to_bytes(4) for n in range(seq, seq + count))
        bodies = [b"%d" % n for n in range(seq, seq + count)]
        unacked.add(ids, queue, Run(None, bodies, seq))
        model.update((ids[n], (queue, seq + n, bodies[n])) for n in range(count))
        seq += count
    return unacked, model


def same(unacked: Unacked[bytes, str], model: Model) -> None:
    assert len(unacked) == len(model)
    held = [
        (each, (queue, seq, body))
        for ids, queue, run in unacked
        for each, seq, body in zip(ids, run.numbers, run.bodies, strict=True)
    ]
    assert sorted(held) == sorted(model.items())


@given(RUNS, st.data())
def test_what_is_taken_are_the_messages_of_these_ids_and_all_others_stay(
    runs: list[tuple[int, str]], data: st.DataObject
) -> None:
    unacked, model = filled(runs)
    while model:
        same(unacked, model)
        ids = tuple(data.draw(st.lists(st.sampled_from(sorted(model)), min_size=1, max_size=6)))
        assert unacked.take((*ids, b"none")) is None
        same(unacked, model)
        taken = unacked.take(ids)
        if len(set(ids)) < len(ids):
            assert taken is None
            continue
        assert taken is not None
        assert tuple(each for of_run, _, _ in taken for each in of_run) == ids
        messages = [
            (queue, seq, body) for _, queue, run in taken for seq, body in enumerate(run.bodies, run.first)
        ]
        assert messages == [model[each] for each in ids]
        if data.draw(st.booleans()):
            unacked.put_back(taken)
            same(unacked, model)
            assert unacked.take(ids) == taken
        for each in ids:
            del model[each]
