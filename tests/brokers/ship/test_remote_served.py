"""A real server and a bucket over HTTP: a topic's head leaves the disk, and is read after kill -9."""

import urllib.request
from pathlib import Path

import pytest

from tests.brokers.conftest import Run
from tests.support.server import Server, speak, until

MESSAGES = [f"{number:04d} {'x' * 3000}" for number in range(100)]


def test_a_topic_whose_head_is_in_the_bucket_is_read_as_ever(
    endpoint: str, tmp_path: Path, command: Run
) -> None:
    pytest.importorskip("obstore")
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/remote", method="PUT")).close()
    credentials = tmp_path / "credentials.toml"
    credentials.write_text('access_key_id = "test"\nsecret_access_key = "test"\n')
    config = tmp_path / "brokers.toml"
    config.write_text(
        f"""
        [logmq.topics."orders"]
        local_retention_bytes = "64KiB"
        [ship]
        url = "s3://remote/prefix"
        endpoint = "{endpoint}"
        region = "us-east-1"
        credentials = "{credentials}"
        interval = 0.05
        fold = 1
        part_bytes = "64KiB"
        [storage]
        retention_seconds = 0.1
        """
    )
    arguments = ("--enable", "logmq", "--port", "logmq=0", "--config", str(config))
    with Server(tmp_path, *arguments) as server:

        def ask(words: str) -> str:
            return speak(server.address("logmq"), f"{words}\nQUIT\n".encode()).decode()

        file = server.data / "logmq/orders.log"
        assert ask("\n".join(f"PRODUCE orders {message}" for message in MESSAGES)).count("OK") == 100

        def has_left() -> bool:
            return file.exists() and file.stat().st_size > 300_000 > 2 * 512 * file.stat().st_blocks

        until(has_left)
        assert not any(file.read_bytes()[:64_000])
        port = str(server.address("logmq")[1])
        words = ("logmq", "consume", "orders", "--port", port)
        assert command(*words) == (0, "\n".join(MESSAGES) + "\n", "")
        server.kill()
        server.start()
        port = str(server.address("logmq")[1])
        words = ("logmq", "consume", "orders", "--port", port, "--max", "3")
        assert command(*words) == (0, "\n".join(MESSAGES[:3]) + "\n", "")
        where = ("--data-dir", str(server.data))
        code, out, said = command(
            "topics", "--columns", "name,local_bytes,local_retention_bytes", "--json", *where
        )
        assert (code, '"local_retention_bytes": 65536' in out) == (0, True), (out, said)
        code, out, said = command("logmq", "change", "orders", "--local-retention-bytes", "1000000", *where)
        assert code == 0, said
        assert server.stop() == 0
    assert command("fsck", *where)[0] == 0
    back = ("restore", "s3://remote/prefix", "--config", str(config), "--data-dir", str(tmp_path / "back"))
    assert command(*back, "--whole")[0] == 0
    assert any((tmp_path / "back/logmq/orders.log").read_bytes()[:64_000])
