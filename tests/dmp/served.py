"""The broker on a real store and real sockets, in a thread of its own: blocking clients can talk to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import structlog
import trio

from dmp.broker import Broker
from dmp.listener import DmpService, open_broker
from dmp.settings import DmpSettings
from shared.net.network import Group, Network
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Context, TcpEndpoint
from shared.storage.settings import StorageSettings
from shared.storage.store import Store

STORAGE = StorageSettings(segment_bytes=1 << 20, zero_fill=False)
PATIENCE_SECONDS = 300.0
"""More than a module of these tests takes on a busy machine, so that a hang fails and does not stay."""
LOG = structlog.stdlib.get_logger("test")


@attrs.define(eq=False)
class Served:
    """`port`: where it listens. `do` runs a function in its trio thread."""

    port: int
    broker: Broker
    token: trio.lowlevel.TrioToken
    group: Group

    def do(self, call: Callable[[], object]) -> object:
        return trio.from_thread.run_sync(call, trio_token=self.token)

    @property
    def crashes(self) -> int:
        """Connections that a bug has cost."""
        return self.group.counters.crashes


@contextmanager
def served(
    folder: Path, settings: DmpSettings | None = None, *, clean: bool = True, tls: TlsSettings | None = None
) -> Iterator[Served]:
    """A server on `folder`. Not `clean`: its end is that of a killed process."""
    started = threading.Event()
    found: list[Served] = []
    failed: list[BaseException] = []
    stop = trio.Event()

    async def main() -> None:
        store = await Store.open(folder, STORAGE)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            broker = await open_broker(Context(store, LOG), settings or DmpSettings())
            service = DmpService(broker)
            (endpoint,) = service.endpoints
            assert isinstance(endpoint, TcpEndpoint)
            group = Group("dmp", Network(NetSettings()), after_turn=store.commit_pending, log=LOG, tls=tls)
            ((_, port),) = group.bind_tcp("dmp", "127.0.0.1", 0, endpoint.open_session, pushes=True)
            await nursery.start(group.serve)
            nursery.start_soon(service.run)
            found.append(Served(int(port), broker, trio.lowlevel.current_trio_token(), group))
            started.set()
            with trio.move_on_after(PATIENCE_SECONDS):
                await stop.wait()
            nursery.cancel_scope.cancel()
        if clean:
            await store.close()
        else:
            store.abandon()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    if not found:
        raise failed[0]
    try:
        yield found[0]
    finally:
        found[0].do(stop.set)
        thread.join()
    if failed:
        raise failed[0]
