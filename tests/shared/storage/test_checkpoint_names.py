"""A checkpoint frees the journal only when the names of the files that take its place are durable too."""

from tests.support.explore import every_state
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, open_store, read_all, records


async def test_a_file_made_after_an_earlier_checkpoint_keeps_its_name_in_a_power_cut() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    log, created = store.namespace("things", ALWAYS).create("late")
    await store.wait(created)
    assert await store.checkpoint()  # the log has no file yet
    _, ticket = log.append(records(b"acknowledged"), 1)
    await store.wait(ticket)
    assert await store.checkpoint()
    crash = disk.power_cut()
    store.abandon()
    runs = 0
    for after in every_state(crash, 1000):
        again = await open_store(after)
        assert await read_all(again.namespace("things", ALWAYS).logs["late"]) == [b"acknowledged"]
        again.abandon()
        runs += 1
    assert runs
