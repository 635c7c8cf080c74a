"""`brokers ship drill` on a real server, what a fenced one says, and a server that ships nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from brokers.commands import control
from tests.brokers.conftest import Run
from tests.brokers.ship.test_promotion import LOGMQ, figure, shipping
from tests.support.server import Server, until


def test_a_drill_compares_what_is_served_and_finds_what_the_bucket_lost(tmp_path: Path, command: Run) -> None:
    bucket = tmp_path / "bucket"
    with Server(tmp_path, *LOGMQ, environ=shipping(f"file://{bucket}", BROKERS_SHIP_FOLD="100")) as server:
        at = ("--port", str(server.address("logmq")[1]))
        here = ("--data-dir", str(server.data))
        until(lambda: any((bucket / "snapshots").glob("*")))
        for number in range(3):
            assert command("logmq", "produce", "orders", f"record {number}", *at)[0] == 0
        code, out, said = command("ship", "drill", "--json", *here)
        assert (code, said) == (0, "")
        drilled = json.loads(out)
        assert (drilled["ok"], drilled["records"], drilled["missing"]) == (True, 3, [])
        assert figure(server, "brokers_ship_drill_ok") == 1
        assert figure(server, "brokers_ship_drill_seconds") == drilled["seconds"] > 0
        assert "unclean shutdown" not in server.said  # of the folder that was restored
        newest = max((bucket / "wal").glob("0*"))
        data = bytearray(newest.read_bytes())
        data[-1] ^= 1
        newest.write_bytes(data)
        code, out, _ = command("ship", "drill", *here)
        assert (code, newest.name in out) == (1, True)
        assert figure(server, "brokers_ship_drill_ok") == 0


def ship_of(server: Server) -> Any:
    return control.request(server.data, "GET", "/status")["ship"]


def test_a_server_that_is_fenced_says_so_where_it_is_asked_for_its_health(
    tmp_path: Path, command: Run
) -> None:
    url = f"file://{tmp_path}/bucket"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with Server(tmp_path / "old", *LOGMQ, environ=shipping(url)) as old:
        at = ("--port", str(old.address("logmq")[1]))
        assert command("logmq", "produce", "orders", "one", *at)[0] == 0
        until(lambda: ship_of(old)["retained_from"] is not None and ship_of(old)["lag_bytes"] == 0)
        assert control.request(old.data, "GET", "/readyz") == "ok\n"
        assert command("restore", url, "--data-dir", str(tmp_path / "back"))[0] == 0
        with Server(tmp_path / "new", *LOGMQ, data=tmp_path / "back", environ=shipping(url)):
            assert command("logmq", "produce", "orders", "two", *at)[0] == 0  # ack = "disk": it goes on
            until(lambda: "fenced" in control.request(old.data, "GET", "/readyz"))
            assert control.request(old.data, "GET", "/readyz").startswith("ok; fenced: nothing is shipped")
            assert command("ship", "status", "--data-dir", str(old.data))[0] == 1
            code, _, said = command("ship", "drill", "--data-dir", str(old.data))
            assert (code, "fenced: nothing is shipped" in said) == (78, True), (code, said)


def test_a_server_without_a_bucket_loads_nothing_that_ships(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    script = (
        "import os, pathlib, signal, sys, threading, time\n"
        "from brokers.commands.cli import run\n"
        "def end():\n"
        f"    while not pathlib.Path({str(ready)!r}).exists(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "code = run(sys.argv[1:])\n"
        "print(*(name for name in sys.modules if name.startswith('brokers.ship')))\n"
        "sys.exit(code)"
    )
    words = ["serve", "--data-dir", str(tmp_path / "data"), "--ready-file", str(ready), *LOGMQ]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    light = {f"brokers.ship{part}" for part in ("", ".link", ".names", ".settings")}
    assert set(done.stdout.split()) == light
