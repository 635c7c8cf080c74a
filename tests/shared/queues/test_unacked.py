"""What a connection holds, in runs or not, beside a plain dict."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shared.queues.runs import Run
from shared.queues.unacked import Delivery, Unacked

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


@given(RUNS, st.data())
def test_tags_are_taken_alone_in_stretches_or_up_to_one(
    runs: list[tuple[int, str]], data: st.DataObject
) -> None:
    unacked = Unacked[int, str]()
    model: dict[int, tuple[str, bytes]] = {}
    following = 1

    def deliver(count: int, queue: str) -> None:
        nonlocal following
        tags = range(following, following + count)
        bodies = [b"%d" % tag for tag in tags]
        unacked.add(tags, queue, Run(None, [*bodies], following + 100))
        model.update(zip(tags, [(queue, body) for body in bodies], strict=True))
        following += count

    def told(deliveries: Iterable[Delivery[int, str]]) -> list[tuple[int, str, bytes]]:
        found = []
        for tags, queue, run in deliveries:
            assert isinstance(tags, range)
            assert [*run.numbers] == [tag + 100 for tag in tags]
            found += [(tag, queue, body) for tag, body in zip(tags, run.bodies, strict=True)]
        return found

    for count, queue in runs * 3:
        deliver(count, queue)
        action = data.draw(st.sampled_from(["one", "stretch", "up to", "back", "all"]))
        tag = data.draw(st.integers(0, following))
        if action == "one":
            one = unacked.take_one(tag)
            assert (one is None) == (tag not in model)
            wanted = [tag] if tag in model else []
            taken = [] if one is None else [one]
        elif action == "stretch":
            stretch = range(tag, tag + data.draw(st.integers(1, 4)))
            found = unacked.take(stretch)
            assert (found is None) == (not all(each in model for each in stretch))
            wanted, taken = ([], []) if found is None else ([*stretch], found)
        elif action == "all":
            wanted, taken = sorted(model), unacked.take_all()
        else:
            wanted, taken = sorted(each for each in model if each <= tag), unacked.take_up_to(tag)
        assert told(taken) == [(each, *model[each]) for each in wanted]
        if action == "back":
            unacked.put_back(taken)
        else:
            for each in wanted:
                del model[each]
        assert len(unacked) == len(model)
        assert sorted(told(unacked)) == [(each, *model[each]) for each in sorted(model)]
