"""`make pictures`: the README's pictures of the page, from a real server under a little load.

The load runs for two minutes, so that the charts have something to show. The pictures have few colours, which
keeps them small.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import trio
from PIL import Image
from playwright.sync_api import sync_playwright

import dms.client
import logmq.client
import pubsub.client
from pubsub.wire import Kind
from tests.support.server import Server

FOLDER = Path(__file__).parents[2] / "brokers" / "page" / "pictures"
VIEWS = (
    ("overview", "/", "light", 1280, 900),
    ("queues", "/queues?sort=-ready", "dark", 1280, 500),
    ("queue", "/queues/dms/payments", "light", 1280, 640),
)
"""Name of the file, path, colours, and size in pixels."""
QUEUES = ("orders.eu", "orders.us", "payments", "emails", "thumbnails", "invoices", "webhooks")
COLOURS = 64
TAKING_SECONDS = 15.0
SETTINGS = {"BROKERS_SERVE_DURABILITY": "interval:50ms"}


async def load(server: Server, seconds: float) -> None:
    """Produce to queues and topics, consume from most queues, and publish to subscribers."""
    chance = random.Random(1)
    async with (
        dms.client.connect(*server.address("dms")) as queues,
        logmq.client.connect(*server.address("logmq")) as topics,
        pubsub.client.open_publisher(*server.address("pubsub")) as publisher,
        trio.open_nursery() as nursery,
    ):
        for name in QUEUES:
            await queues.create(name)
            if name not in ("payments", "webhooks"):
                nursery.start_soon(_consume, server, name)
        for name in ("hall", "office"):
            nursery.start_soon(_subscribe, server, name)
        ends = trio.current_time() + seconds
        beat = 0
        while trio.current_time() < ends:
            beat += 1
            count = round(40 + 30 * math.sin(beat / 60) + 10 * chance.random())
            for name in QUEUES:
                bodies = [json.dumps({"id": beat, "total": round(chance.random() * 100, 2)}).encode()]
                await queues.produce_many(name, bodies * (count // 8 + 1))
            await topics.produce_many("clicks", [b'{"page": "/", "ms": 12}'] * count)
            await topics.produce_many("audit", [b'{"user": "ann"}'] * (count // 10))
            for _ in range(count // 4):
                await publisher.publish("hall/3/temperature", Kind.FLOAT, "21.5")
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def _consume(server: Server, name: str) -> None:
    async with (
        dms.client.connect(*server.address("dms")) as client,
        client.consume(name, prefetch=20) as consumer,
    ):
        async for message in consumer:
            await message.ack()


async def _subscribe(server: Server, name: str) -> None:
    async with pubsub.client.open_subscriber(name, *server.address("pubsub")) as subscriber:
        await subscriber.subscribe("hall/+/temperature")
        async for _ in subscriber:
            pass


def take(root: str, token: str, folder: Path) -> Iterator[Path]:
    """Write the pictures."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox) as browser,
    ):
        for name, path, scheme, width, height in VIEWS:
            size = {"width": width, "height": height}
            options = {"viewport": size, "color_scheme": scheme}
            with contextlib.closing(browser.new_context(**options)) as context:  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(f"{root}/?token={token}")
                page.goto(root + path)
                page.wait_for_timeout(1000)  # charts are drawn
                picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
            file = folder / f"{name}.png"
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
            yield file


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load before the pictures")
    seconds: float = parser.parse_args().seconds
    if shutil.which("chromium") is None:
        print("needs Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), environ=SETTINGS) as server:
        loading = threading.Thread(target=trio.run, args=(load, server, seconds + TAKING_SECONDS))
        loading.start()
        time.sleep(seconds)
        token = (server.data / "admin.token").read_text().strip()
        for file in take(server.ready["page"].rstrip("/"), token, FOLDER):
            print(f"{file.name}: {file.stat().st_size:,} bytes")
        loading.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
