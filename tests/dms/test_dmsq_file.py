""".dmsq files: read whole or refused, imported once at a start, and written so that they can be."""

import os
import struct
from pathlib import Path

import attrs
import pytest
import trio

from dms import wire
from dms.admin import FileFailed
from dms.dmsq_file import DmsqWriter, NotDmsq, import_files, parse
from dms.errors import QueueFull
from dms.settings import DmsSettings
from shared.errors import EXIT_TEMPORARY
from tests.dms.world import World


def dmsq(*bodies: bytes) -> bytes:
    return struct.pack(">I", len(bodies)) + b"".join(
        struct.pack(">II", number, len(body)) + body for number, body in enumerate(bodies, 77)
    )


def test_a_dmsq_file_is_whole_or_refused() -> None:
    data = dmsq(b"a", b"", b"c" * 4096)
    assert parse(data) == [b"a", b"", b"c" * 4096]
    for wrong in (b"", data[:-1], data + b"x", data[:3], dmsq(b"x" * 4097)):
        with pytest.raises(NotDmsq):
            parse(wrong)


def test_a_file_of_the_data_folder_is_imported_once_and_again_only_when_it_is_another(tmp_path: Path) -> None:
    world = World()

    def start() -> None:
        world.store.folder = tmp_path
        trio.run(import_files, world.engine)
        world.settle()

    (tmp_path / "orders.dmsq").write_bytes(dmsq(b"a", b"b"))
    (tmp_path / "broken.dmsq").write_bytes(dmsq(b"a", b"b")[:-1])
    for _ in range(2):
        start()
        assert world.depths() == {"orders": 2}
        world.kill()
    (tmp_path / "orders.dmsq").write_bytes(dmsq(b"c"))
    start()
    assert [body for _, body in world.connect().consume("orders", 3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("settings", [DmsSettings(persist=False), DmsSettings()], ids=["memory", "always"])
def test_what_is_exported_can_be_imported(settings: DmsSettings, tmp_path: Path) -> None:
    world = World(settings)
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", *(b"%d" % n for n in range(10)))
    peer.consume("orders", 3)
    target = tmp_path / "out.dmsq"
    assert world.call("export", queue="orders", target=str(target))["messages"] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["out.dmsq"]
    assert parse(target.read_bytes()) == [b"%d" % n for n in range(10)]
    assert world.call("import", source=str(target), queue="copy")["messages"] == 10
    world.engine.settings = attrs.evolve(settings, depth=9)
    with pytest.raises(wire.Refusal, match="small has room for 9 messages, and the file has 10"):
        world.call("import", source=str(target), queue="small")
    assert set(world.depths()) == {"orders", "copy"}, "none was made"
    world.settle()
    assert [body for _, body in world.connect().consume("copy", 10)] == [b"%d" % n for n in range(10)]


def test_what_a_killed_export_left_is_in_nobodys_way(tmp_path: Path) -> None:
    world = World()
    world.connect().create("orders")
    target = tmp_path / "out.dmsq"
    killed = DmsqWriter(target)  # by a process that had our number: in a container it is always 1
    killed.add([b"half"])
    assert world.call("export", queue="orders", target=str(target))["messages"] == 0
    killed.abandon()
    assert parse(target.read_bytes()) == []


def test_an_import_is_to_be_tried_again_only_where_there_may_be_room_later(tmp_path: Path) -> None:
    world = World(DmsSettings(depth=10))
    world.connect().create("orders")
    world.connect().produce("orders", b"in the way")
    file = tmp_path / "orders.dmsq"
    file.write_bytes(dmsq(*[b"a"] * 10))
    with pytest.raises(QueueFull, match="orders has room for 9 messages, and the file has 10") as later:
        world.call("import", source=str(file))
    assert later.value.exit_code == EXIT_TEMPORARY
    file.write_bytes(dmsq(*[b"a"] * 11))
    with pytest.raises(wire.Refusal, match="orders has room for 9 messages, and the file has 11") as never:
        world.call("import", source=str(file))
    assert never.value.exit_code != EXIT_TEMPORARY


def test_an_import_into_a_queue_without_a_name_is_refused(tmp_path: Path) -> None:
    """A script's variable that is not set: the file's name is not what was meant."""
    world = World()
    (tmp_path / "orders.dmsq").write_bytes(dmsq(b"a"))
    with pytest.raises(wire.Refusal, match="a name is 1 to 64 bytes, not 0"):
        world.call("import", source=str(tmp_path / "orders.dmsq"), queue="")
    assert world.depths() == {}


def test_an_export_takes_the_place_of_no_pipe_device_or_link(tmp_path: Path) -> None:
    world = World()
    world.connect().create("orders")
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/nowhere")
    for path in (pipe, link, tmp_path):
        with pytest.raises(FileFailed, match=f"{path}: Not a regular file"):
            world.call("export", queue="orders", target=str(path))
    assert pipe.is_fifo()
    assert link.is_symlink()
