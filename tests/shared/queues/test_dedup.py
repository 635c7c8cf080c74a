"""Keys by which a message is taken once; the protocols' models walk through the rest."""

from shared.queues.dedup import SeenKeys


def test_the_window_of_a_message_that_the_disk_refused_ends_no_other() -> None:
    charged: list[int] = []
    seen = SeenKeys(100, charged.append)
    for number, key in ((1, "refused"), (2, "refused and sent again")):
        seen.add(key, number, 10)
        seen.undo(key)
        assert seen.number_of(key, 0) is None
    seen.add("refused and sent again", 3, 20)
    seen.leave("refused and sent again")
    assert seen.forget(11) == []
    assert seen.number_of("refused and sent again", 11) == 3
    assert sum(charged) == 100
    assert (seen.forget(20), len(seen), sum(charged)) == (["refused and sent again"], 0, 0)
