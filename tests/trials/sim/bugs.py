"""Planted bugs: what a trial must find to be worth running. Each is a small change of the real code, made
from outside for the time of one run; the product has no switch for any of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from heapq import heappush
from typing import Any
from unittest.mock import patch

import attrs

from brokers.bridges.bridge import Bridge
from dmp.amqp.consumer_timeouts import ConsumerTimeouts
from dmp.broker import Broker
from dmp.later import Later
from dmp.lives import Lives
from dmp.once import Once
from dmp.queue_log import QueueLog as AmqpQueueLog
from dms import expiry, intake, jobs, named_jobs, opening, records, requests
from dms.engine import ColdRow, Consumer, Engine, Queue
from dms.expiry import AckDeadlines, Expiry
from dms.job_requests import JobRequest, job_request_untrusted, job_time_untrusted
from dms.jobs import DueSchedules, Jobs
from dms.opening import LogReplay
from dms.queue_log import QueueLog
from dms.records import unpack
from dms.times import Times
from logmq.bridge import LogmqSource
from logmq.groups import Groups
from logmq.writers import Writers
from shared import schedules
from shared.bridging import MessageRun
from shared.queues.dedup import SeenKeys
from shared.queues.keys import Keys, _InTurn, _Lane
from shared.queues.naming import MessageName, NewTime
from shared.queues.priorities import Priorities
from shared.queues.runs import Ready, Run
from shared.schedules import Due
from shared.storage import format, recovery, replay
from shared.storage.checkpoint import Checkpointer
from shared.storage.committer import Commit, Committer
from shared.storage.journal import Journal, PoisonError
from shared.storage.log import Log, Ticket
from shared.storage.log_writer import LogWriter
from tests.trials.sim.disk import FaultyDisk
from tests.trials.sim.run import Verdict, play

Change = tuple[Any, str, Any]
"""An object, the name of an attribute, and what stands there instead."""
Changes = Callable[[], list[Change]]

_SLIPS = ("TypeError", "AttributeError", "NameError")
"""A bug that is found by one of these proves nothing."""


@attrs.frozen
class Bug:
    """`seeds_max`: one of so many seeds, from 0 on, must find it, in runs of this profile."""

    changes: Changes
    profile: str
    seeds_max: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, instead in self.changes():
                stack.enter_context(patch.object(owner, name, instead))
            yield


BUGS: dict[str, Bug] = {}
"""By name, that of the function with dashes."""


def bug(profile: str, seeds_max: int = 100) -> Callable[[Changes], Changes]:
    """Register a bug: a function that says what it changes."""

    def register(changes: Changes) -> Changes:
        BUGS[changes.__name__.replace("_", "-")] = Bug(changes, profile, seeds_max)
        return changes

    return register


def find(planted: Bug) -> tuple[Verdict | None, int]:
    """The first seed that breaks with the bug planted (None: none does), and how many were tried."""
    for seed in range(planted.seeds_max):
        verdict = play(seed, profile=planted.profile, bug=planted.planted())
        if verdict.broken is not None:
            last = verdict.broken.strip().splitlines()[-1]
            if last.startswith(_SLIPS):
                raise AssertionError(f"what is planted does not fit the code any more: {last}")
            return verdict, seed + 1
    return None, planted.seeds_max


# -- acknowledging


@bug("answers")
def acknowledge_before_sync() -> list[Change]:
    """A commit is synced when the next one is made."""
    run = Commit.run

    def run_then_sync_with_the_next(self: Commit) -> None:
        try:
            self.journal.sync()  # what the commit before this one has written, and acknowledged
        except PoisonError as error:
            self.poison = error
            return
        run(self)

    return [(Commit, "run", run_then_sync_with_the_next), (Commit, "_sync", lambda self: None)]


@bug("failing syncs")
def retry_failed_sync() -> list[Change]:
    """A sync that failed is tried again, and called good."""
    sync = Journal.sync

    def sync_again(self: Journal) -> None:
        try:
            sync(self)
        except PoisonError:
            sync(self)

    return [(Journal, "sync", sync_again)]


@bug("readers")
def show_before_sync() -> list[Change]:
    """Readers see records before the sync that covers them."""
    sync, apply = Commit._sync, Commit._apply

    def show_then_sync(self: Commit) -> None:
        apply(self, self.batches[: self.good])
        for batch in self.batches[: self.good]:
            for log, offset, data, _ in batch.light:
                log.visible = offset + len(data)
            for part in batch.appends.values():
                log, target = part.log, self.logs.get(part.log)
                if target is None or not target.closed:
                    if target is not None:
                        log.open_entry = target.open_entry
                    log.visible = part.end
        sync(self)

    def apply_unless_shown(self: Commit, good: Any) -> None:
        if not self.synced:
            apply(self, good)

    return [(Commit, "_sync", show_then_sync), (Commit, "_apply", apply_unless_shown)]


@bug("groups")
def acknowledge_commit_at_once() -> list[Change]:
    """COMMIT is answered before the group's offset is durable."""
    commit = Groups.commit

    def commit_done(self: Groups, *arguments: Any) -> Ticket:
        commit(self, *arguments)
        done = Ticket()
        done.resolve(None)
        return done

    return [(Groups, "commit", commit_done)]


@bug("batches")
def batch_apart_from_its_memory() -> list[Change]:
    """A BATCH and the memory of it are two batches of the journal."""
    append_all = Committer.append_all

    def append_one_by_one(self: Committer, parts: Any, reserved: bool = False) -> Any:
        first, *others = parts
        offsets, ticket = append_all(self, [first], reserved)
        if not others:
            return offsets, ticket
        all_done = Ticket()

        def resolve(done: Ticket) -> None:
            all_done.resolve(done.error)

        def go_on(done: Ticket) -> None:
            if done.error is not None:
                resolve(done)
            else:
                append_one_by_one(self, others, reserved)[1].when_done(resolve)

        ticket.when_done(go_on)
        return offsets, all_done

    return [(Committer, "append_all", append_one_by_one)]


@bug("batches")
def batches_forgotten() -> list[Change]:
    """A restart forgets which batches were written."""
    begin = Writers.__init__

    def begin_anew(self: Writers, store: Any, table: Any, **others: Any) -> None:
        begin(self, store, table, **others)
        table.discard([key for key, _ in table.items()])

    return [(Writers, "__init__", begin_anew)]


# -- names


def _forget_folder(*folders: str) -> list[Change]:
    sync_folder = FaultyDisk.sync_folder

    def sync_others(self: FaultyDisk, path: str) -> None:
        if path not in folders:
            sync_folder(self, path)

    return [(FaultyDisk, "sync_folder", sync_others)]


@bug("mixed")
def forget_folder_sync_journal() -> list[Change]:
    """The journal"s folder is not synced after a segment is made or renamed."""
    return _forget_folder("journal")


@bug("mixed")
def forget_folder_sync_catalog() -> list[Change]:
    """The data folder is not synced after the catalog is renamed."""
    return _forget_folder("")


@bug("checkpoints")
def forget_folder_sync_logs() -> list[Change]:
    """A checkpoint does not sync the folders of new logs."""
    return _forget_folder("logmq", "logmq-tables")


# -- starting again


@bug("answers")
def replay_skips_last_batch() -> list[Change]:
    """Replay leaves out the last batch."""
    scan = replay.scan

    def scan_short(*arguments: Any) -> Any:
        found = scan(*arguments)
        return attrs.evolve(found, batches=found.batches[:-1])

    return [(replay, "scan", scan_short)]


@bug("deletes")
def delete_forgotten() -> list[Change]:
    """Replay takes no notice of DELETE entries."""
    gather = recovery._gather

    def gather_without(*arguments: Any) -> Any:
        changes = gather(*arguments)
        changes.deleted.clear()
        return changes

    return [(recovery, "_gather", gather_without)]


@bug("torn writes")
def torn_batch_believed() -> list[Change]:
    """Replay does not check a batch's CRC."""
    return [(format, "batch_is_good", lambda batch, data: True)]


@bug("references")
def references_believed() -> list[Change]:
    """Replay does not look whether a log's file has what the journal refers to."""
    return [(replay, "_bears_out", lambda *arguments: True)]


@bug("references")
def references_not_synced() -> list[Change]:
    """The journal is synced, and not what it refers to."""
    sync = Journal.sync
    return [(Journal, "sync", lambda self, beside=(): sync(self))]


@bug("references")
def references_not_named() -> list[Change]:
    """The folder of a new log's file is not synced with what the journal refers to."""
    return [(Commit, "_sync_names", lambda self: None)]


@bug("references")
def references_unannounced() -> list[Change]:
    """Files are ahead of a journal that does not say so."""
    return [(Committer, "_may_refer", lambda self, log: True)]


@bug("restarts")
def recovery_not_synced() -> list[Change]:
    """Recovery starts a new journal without syncing what it replayed."""
    return [(recovery, "_sync", lambda *arguments: None)]


# -- commits of several batches


@bug("bridges to logs that drop")
def tail_forgotten_where_the_front_is_dropped() -> list[Change]:
    """Records go straight to a log's file where another batch of the commit moves its first offset."""
    take_log = Committer._take_log

    def straight_to_the_file(self: Committer, log: Log, parts: Any, *, synced: bool) -> Any:
        target = take_log(self, log, parts, synced=synced)
        if target.late and parts[0].batch is not parts[-1].batch:
            target.fd, target.late = self.files.pin(log.file), False
        return target

    sort = Committer._sort

    def none_light(self: Committer, commit: Commit) -> None:
        light_most = self._light_most
        logs = [log for batch in commit.batches for log in batch.appends]
        if len(set(logs)) < len(logs):
            self._light_most = -1
        sort(self, commit)
        self._light_most = light_most

    return [(Committer, "_take_log", straight_to_the_file), (Committer, "_sort", none_light)]


# -- checkpoints


@bug("checkpoints")
def checkpoint_without_sync() -> list[Change]:
    """A checkpoint frees segments, and syncs no log."""

    async def sync_none(*_: object) -> None: ...

    return [(Checkpointer, "_sync_files", sync_none)]


@bug("checkpoints")
def stock_amid_commit() -> list[Change]:
    """A checkpoint takes stock while a commit is under way."""

    async def at_once(_: Committer, take: Callable[[], Any]) -> Any:
        return take()

    return [(Committer, "between_commits", at_once)]


@bug("deletes amid checkpoints", seeds_max=300)
def stock_amid_deletion() -> list[Change]:
    """A checkpoint leaves out a log whose deletion is asked for and not durable."""
    return [(Log, "gone", property(lambda self: self.deleted))]


# -- failing writes, weaker modes


@bug("limited files")
def refused_tail_forgotten() -> list[Change]:
    """What a log's file does not take counts as written, so a checkpoint frees the only copy."""
    write = LogWriter._write

    def written_anyway(self: LogWriter, step: Any, room: int) -> None:
        write(self, step, room)
        for writing in step:
            writing.tail.written, writing.tail.error = bool(writing.tail.data), None

    return [(LogWriter, "_write", written_anyway)]


@bug("limited files")
def tail_cut_within_a_record() -> list[Change]:
    """A part of a tail that is written ends anywhere, and readers are given the file up to there."""

    def cut(self: LogWriter, log: Log, room: int) -> int:
        return min(log.visible, log.tail_start + room)

    return [(LogWriter, "_cut", cut)]


@bug("full disks")
def failed_write_not_taken_back() -> list[Change]:
    """The end of a log stays where a failed write would have brought it."""
    return [(Committer, "_roll_back", lambda self, logs: None)]


@bug("intervals")
def interval_never_ends() -> list[Change]:
    """Mode interval never syncs."""
    finish = Committer._finish

    def finish_only(self: Committer, commit: Commit) -> None:
        finish(self, commit)
        self._sync_by = float("inf")

    return [(Committer, "_finish", finish_only)]


# -- DMS


@bug("queues that answer")
def dms_produce_before_sync() -> list[Change]:
    """PRODUCE_OK is sent before the sync."""
    return _done_at_once("produce")


@bug("queues that answer")
def dms_ack_before_sync() -> list[Change]:
    """ACK_OK is sent before the sync."""
    return _done_at_once("ack")


def _done_at_once(name: str) -> list[Change]:
    sound = getattr(QueueLog, name)

    def done_at_once(self: QueueLog, *arguments: Any) -> Ticket:
        sound(self, *arguments)
        done = Ticket()
        done.resolve(None)
        return done

    return [(QueueLog, name, done_at_once)]


@bug("queues with snapshots")
def dms_snapshot_forgets_older() -> list[Change]:
    """A snapshot leaves out what is held or has come back."""
    return [(Queue, "older_than_row", lambda self: [])]


@bug("one worker")
def dms_nack_loses_place() -> list[Change]:
    """A NACK puts a message behind the next."""
    requeue = Queue.requeue

    def requeue_behind(self: Queue, runs: Sequence[Run], *, nacked: bool) -> None:
        if not nacked or self.log is None or self.is_cold or self.head == self.end:
            requeue(self, runs, nacked=nacked)
            return
        (run,) = runs  # it changes places with the first of the row
        (first, *_) = self.ready.runs
        run.bodies[0], first.bodies[0] = first.bodies[0], run.bodies[0]
        requeue(self, runs, nacked=True)

    return [(Queue, "requeue", requeue_behind)]


@bug("one worker")
def dms_keeps_what_was_held() -> list[Change]:
    """A connection's end gives nothing back."""
    return [(Engine, "release_consumer", lambda self, *arguments: None)]


@bug("queues")
def dms_delivers_what_is_held() -> list[Change]:
    """The last of several messages that go out together goes out twice."""
    take = Ready.take_row

    def take_and_keep_one(self: Ready, most: int) -> Run:
        run = take(self, most)
        if len(run) > 1:
            self.requeue(run.part(len(run) - 1, len(run)))
        return run

    return [(Ready, "take_row", take_and_keep_one)]


@bug("queues that answer")
def dms_replay_forgets_acks() -> list[Change]:
    """Replay believes ACKs of the oldest message only."""
    gone = LogReplay._gone

    def only_the_front(self: LogReplay, run: Any) -> None:
        if run.first >= self.head or run.first == min(self.out, default=run.first):
            gone(self, run)

    return [(LogReplay, "_gone", only_the_front)]


@bug("queues of mortals", seeds_max=300)
def dms_dead_move_in_two_entries() -> list[Change]:
    """The dead leave their queue in one entry of the journal, and come in another."""

    def move_bit_by_bit(
        self: Engine, source: Queue, target: Queue, runs: Any, letters: Any, reason: Any
    ) -> None:
        assert source.log is not None
        _, left = source.log.append(*source.log.moving(runs, reason, target.text), reserved=True)
        source.drop(runs)

        def arrive(done: Ticket) -> None:
            target.produce(letters, sum(map(len, letters)))

        left.when_done(arrive)

    return [(Engine, "move", move_bit_by_bit)]


@bug("queues of mortals")
def dms_dead_left_behind() -> list[Change]:
    """The record that the dead have left is forgotten."""

    def copy_only(self: Engine, source: Queue, target: Queue, runs: Any, letters: Any, reason: Any) -> None:
        target.produce(letters, sum(map(len, letters)))
        source.drop(runs)

    return [(Engine, "move", copy_only)]


@bug("queues of mortals")
def dms_restart_ends_delays() -> list[Change]:
    """After a restart nothing is delayed any more."""
    restore = opening._restore_times

    def released(queue: Queue, replay: LogReplay) -> None:
        restore(queue, replay)
        if queue.expiry is not None:
            queue.expiry.delays.clear()
            queue.expiry.released = queue.tail

    return [(opening, "_restore_times", released)]


@bug("queues of mortals")
def dms_restart_begins_times_anew() -> list[Change]:
    """A restart gives lifetimes and delays in full again."""
    restore = opening._restore_times

    def renewed(queue: Queue, replay: LogReplay) -> None:
        replay.produced = [(queue.engine.times.now_ms(), upto) for _, upto in replay.produced]
        restore(queue, replay)

    return [(opening, "_restore_times", renewed)]


@bug("queues of mortals")
def dms_times_run_on() -> list[Change]:
    """A restart takes 60 ms off everything."""
    not_before = Times.not_before
    return [(Times, "not_before", lambda self, age_ms: not_before(self, age_ms + 60))]


@bug("queues of mortals")
def dms_expired_goes_out() -> list[Change]:
    """What is past its lifetime is delivered."""
    on_time = Expiry.on_time

    def delays_only(self: Expiry, now: int) -> None:
        self.lifetimes.clear()
        on_time(self, now)

    return [(Expiry, "on_time", delays_only)]


@bug("queues of mortals")
def dms_nack_costs_no_time() -> list[Change]:
    """A NACK delays nothing."""
    on_returned = Expiry.on_returned

    def returned_at_once(self: Expiry, run: Run, *, nacked: bool, delay_ms: int = 0) -> int:
        return on_returned(self, run, nacked=False)

    return [(Expiry, "on_returned", returned_at_once)]


@bug("queues of mortals")
def dms_tries_never_end() -> list[Change]:
    """Deliveries are not counted."""
    on_returned = Expiry.on_returned

    def returned_for_the_first_time(self: Expiry, run: Run, *, nacked: bool, delay_ms: int = 0) -> int:
        run.tries = 1
        return on_returned(self, run, nacked=nacked, delay_ms=delay_ms)

    return [(Expiry, "on_returned", returned_for_the_first_time)]


@bug("queues of mortals")
def dms_skips_what_is_cold() -> list[Change]:
    """Of what is read back only the first record is taken, and the next read begins behind all."""
    take_in = ColdRow._take_in

    def take_first(self: ColdRow, data: bytes) -> None:
        end = self.offset + len(data)
        take_in(self, data[: next((record.end for record in unpack(data)), 0)])
        self.offset = end

    return [(ColdRow, "_take_in", take_first)]


# -- bridges


# -- jobs


@bug("queues of jobs")
def jobs_come_early() -> list[Change]:
    """A delay is over at its half."""
    due_at = expiry.due_at
    return [(module, "due_at", lambda now, after_ms: due_at(now, after_ms // 2)) for module in (expiry, jobs)]


@bug("queues of jobs")
def jobs_for_a_time_do_not_wait() -> list[Change]:
    """`at` says nothing."""
    asked = job_request_untrusted
    return [
        (intake, "job_request_untrusted", lambda text, now_ms: attrs.evolve(asked(text, now_ms), at_ms=0))
    ]


@bug("queues of jobs")
def jobs_that_are_moved_to_a_time_do_not_wait() -> list[Change]:
    """`at` of a RESCHEDULE says nothing."""
    asked = job_time_untrusted

    def asked_without_at(text: bytes, now_ms: int) -> tuple[MessageName, NewTime]:
        name, time = asked(text, now_ms)
        return name, NewTime(time.delay_ms or 0)

    return [(requests, "job_time_untrusted", asked_without_at)]


@bug("queues of jobs")
def jobs_that_were_moved_are_where_they_were_after_a_start() -> list[Change]:
    """Replay passes over what RESCHEDULE wrote."""
    return [(records, "rescheduled_in", lambda data, record: iter(()))]


@bug("queues of jobs")
def jobs_outlive_their_lives() -> list[Change]:
    """Nothing dies before it was delivered."""
    return [(jobs, "_EXPIRES", b"nothing")]


@bug("queues of jobs")
def jobs_live_half_as_long() -> list[Change]:
    """A life is over at its half."""
    asked = job_request_untrusted

    def asked_for_half(text: bytes, now_ms: int) -> JobRequest:
        request = asked(text, now_ms)
        if request.at_ms or not request.ttl_ms:
            return request
        return attrs.evolve(request, ttl_ms=max(request.ttl_ms // 2, request.delay_ms or 0))

    return [(intake, "job_request_untrusted", asked_for_half)]


@bug("queues of jobs")
def jobs_deadlines_never_end() -> list[Change]:
    """What is overdue does not return."""
    return [(AckDeadlines, "on_time", lambda self, now: None)]


@bug("queues of jobs")
def jobs_deadlines_do_not_begin_anew() -> list[Change]:
    """TOUCH is answered, and changes nothing."""
    begin = AckDeadlines.begin

    def begin_once(self: AckDeadlines, consumer: Consumer, ids: Sequence[bytes]) -> None:
        begin(self, consumer, [each for each in ids if int.from_bytes(each) not in self._held])

    return [(AckDeadlines, "begin", begin_once)]


@bug("queues of jobs")
def jobs_are_cancelled_in_word_alone() -> list[Change]:
    """CANCEL looks whether the job is there."""
    return [(named_jobs, "cancel", lambda jobs, name: named_jobs.find(jobs, name) and None)]


@bug("queues of jobs")
def jobs_have_no_name() -> list[Change]:
    """A name that is known is taken again."""
    return [(SeenKeys, "number_of", lambda self, key, now: None)]


@bug("queues of jobs")
def jobs_of_a_key_go_at_once() -> list[Change]:
    """`per_key` is one more than it says."""
    new_keys = Jobs._new_keys

    def with_one_more(self: Jobs) -> Any:
        keys = new_keys(self)
        keys.per_key += bool(keys.per_key)
        return keys

    return [(Jobs, "_new_keys", with_one_more)]


@bug("queues of jobs")
def jobs_before_sync() -> list[Change]:
    """PRODUCE_OK of a job is sent before the sync."""
    return _done_at_once("job")


@bug("queues of jobs")
def jobs_are_left_out_of_snapshots() -> list[Change]:
    """A snapshot leaves out the jobs that stand first in its slices."""
    places = Jobs.places

    def some(self: Jobs) -> Iterator[list[tuple[int, bytes]]]:
        return (jobs[1:] for jobs in places(self))

    return [(Jobs, "places", some)]


@bug("queues of jobs")
def jobs_come_back_from_the_log() -> list[Change]:
    """Replay forgets that jobs have left."""
    return [(LogReplay, "_jobs_gone", lambda self, run: None)]


@bug("queues of jobs")
def jobs_are_dropped_with_the_front() -> list[Change]:
    """The front of the log is dropped though jobs stand there."""
    drop = QueueLog._drop_behind

    def forgetful(
        self: QueueLog, ticket: Ticket, start: int, row_start: int, lowest: float, job_bytes: float
    ) -> None:
        drop(self, ticket, start, row_start, start, job_bytes)

    return [(QueueLog, "_drop_behind", forgetful)]


@bug("queues of jobs")
def keys_jobs_pass_each_other() -> list[Change]:
    """Of a key the newest job goes first."""

    def put_the_newest_first(self: _Lane, run: Run) -> None:
        heappush(self.runs, (-run.first, run))
        self.count += len(run.bodies)

    return [(_Lane, "put", put_the_newest_first)]


@bug("queues of jobs")
def keys_jobs_have_no_priority() -> list[Change]:
    """All stand in one line."""
    begin = Keys.__init__

    def begin_with_one(self: Keys, per_key: int = 0, **options: Any) -> None:
        begin(self, per_key, **{**options, "priority_max": 0})

    return [(Keys, "__init__", begin_with_one)]


@bug("queues of jobs")
def keys_take_no_turns() -> list[Change]:
    """A key goes on until it has nothing more."""

    def stand_first(self: _InTurn, lane: _Lane) -> None:
        if lane.place is None:
            lane.place = 0
            self._lanes.appendleft(lane)

    return [(_InTurn, "put", stand_first)]


@bug("queues of jobs")
def schedules_make_up_for_what_was_missed() -> list[Change]:
    """A schedule comes as often as it was missed."""

    def take_the_next(self: Due, now_ms: int) -> int | None:
        if self.next_ms is None or now_ms < self.next_ms:
            return None
        self.done_ms = self.next_ms
        self.next_ms = self.schedule.next_after(self.done_ms)
        return self.done_ms

    return [(Due, "take", take_the_next)]


@bug("queues of jobs")
def schedules_forget_what_was_missed() -> list[Change]:
    """A start begins schedules anew."""
    return [(DueSchedules, "restore", lambda self, done: None)]


@bug("queues of jobs")
def schedules_forget_what_is_done() -> list[Change]:
    """That a time of a schedule is done is not written."""
    return [(QueueLog, "scheduled", lambda self, form, first, done: self.job(form, first))]


@bug("queues of jobs", seeds_max=300)
def schedules_follow_a_clock_back() -> list[Change]:
    """Cron's times come again wherever the clock was set back."""
    return [(schedules, "BACK_MS", 1000)]


# -- jobs by AMQP


@bug("queues of jobs by AMQP")
def amqp_keys_go_at_once() -> list[Change]:
    """`x-per-key` is one more than it says."""
    begin = Keys.__init__

    def with_one_more(self: Keys, per_key: int = 0, **options: Any) -> None:
        begin(self, per_key + bool(per_key), **options)

    return [(Keys, "__init__", with_one_more)]


@bug("queues of jobs by AMQP")
def amqp_keys_pass_each_other() -> list[Change]:
    """Of a key the newest goes first."""
    return keys_jobs_pass_each_other()


@bug("queues of jobs by AMQP")
def amqp_keys_take_no_turns() -> list[Change]:
    """A key goes on until it has nothing more."""
    return keys_take_no_turns()


@bug("queues of jobs by AMQP")
def amqp_names_are_forgotten_with_their_messages() -> list[Change]:
    """A name is known while its message is in the queue alone."""
    return [(Once, "restore", lambda self, windows: None)]


@bug("queues of jobs by AMQP")
def amqp_names_are_not_seen_at_a_start() -> list[Change]:
    """Of what a start finds no name is known."""
    return [(Once, "found", lambda self, run: None), (Once, "restore", lambda self, windows: None)]


@bug("queues of jobs by AMQP")
def amqp_delays_end_at_a_start() -> list[Change]:
    """After a restart nothing waits any more."""
    found = Later.found
    return [(Later, "found", lambda self, place, due_ms, *about: found(self, place, 0, *about))]


@bug("queues of jobs by AMQP")
def amqp_messages_have_no_priority() -> list[Change]:
    """All stand in one line."""
    return keys_jobs_have_no_priority()


@bug("queues of jobs by AMQP")
def amqp_queues_without_keys_have_no_priority() -> list[Change]:
    """All stand in one line, where keys say nothing."""
    return [(Priorities, "_level", lambda self, priority: self.levels[0])]


@bug("queues of jobs by AMQP")
def amqp_messages_that_come_back_lose_their_places() -> list[Change]:
    """Where keys say nothing, what comes back stands behind all others."""
    return [(Priorities, "requeue", Priorities.add)]


@bug("queues of jobs by AMQP")
def amqp_consumers_have_any_time() -> list[Change]:
    """Nobody looks when what was delivered is acknowledged."""
    return [(ConsumerTimeouts, "delivered", lambda self, holder, timeout_ms, before: None)]


@bug("queues of jobs by AMQP")
def amqp_consumers_have_half_their_time() -> list[Change]:
    """A channel is closed at the half of its time."""
    delivered = ConsumerTimeouts.delivered

    def delivered_long_ago(self: ConsumerTimeouts, holder: object, timeout_ms: int, before: int) -> None:
        delivered(self, holder, timeout_ms // 2, before)

    return [(ConsumerTimeouts, "delivered", delivered_long_ago)]


@bug("queues of jobs by AMQP")
def amqp_messages_outlive_their_lives() -> list[Change]:
    """What is too old is delivered."""
    return [(Lives, "end", lambda self, head, since: math.inf)]


@bug("queues of jobs by AMQP")
def amqp_messages_live_half_as_long() -> list[Change]:
    """A life is over at its half."""
    end = Lives.end
    return [(Lives, "end", lambda self, head, since: (since + end(self, head, since)) / 2)]


@bug("queues of jobs by AMQP")
def amqp_lives_begin_anew_with_the_server() -> list[Change]:
    """A start does not ask when messages came."""
    return [(Lives, "end_of_found", lambda self, head: self.end(head, self._started))]


@bug("queues of jobs by AMQP")
def amqp_acknowledgements_are_not_written() -> list[Change]:
    """What leaves a durable queue is not written."""
    return [(AmqpQueueLog, "flush", lambda self: None)]


@bug("queues of jobs by AMQP")
def amqp_confirms_before_sync() -> list[Change]:
    """A publish is confirmed before the sync."""
    publish = Broker.publish

    def confirm_at_once(self: Broker, *arguments: Any, **options: Any) -> None:
        publish(self, *arguments, **options)

    return [(Broker, "publish", confirm_at_once)]


@bug("bridges")
def bridge_position_is_late() -> list[Change]:
    """A bridge's place in a log is written with the next messages."""
    confirm = LogmqSource.confirm
    before: dict[LogmqSource, MessageRun] = {}

    def confirm_the_last(self: LogmqSource, run: MessageRun) -> None:
        if self in before:
            confirm(self, before[self])
        before[self] = run

    return [(LogmqSource, "confirm", confirm_the_last)]


@bug("bridges")
def bridge_confirms_apart() -> list[Change]:
    """What a bridge confirms is in an entry behind the one that has what it wrote."""
    confirm = LogmqSource.confirm

    def confirm_apart(self: LogmqSource, run: MessageRun) -> None:
        self._context.store.commit_pending()
        confirm(self, run)

    return [
        (Committer, "together", lambda self, size: nullcontext()),
        (LogmqSource, "confirm", confirm_apart),
    ]


@bug("bridges", seeds_max=300)
def bridge_does_not_ask_the_disk() -> list[Change]:
    """An entry that the disk refused counts as carried."""
    return [(Bridge, "_written", lambda self, ticket, entry: self._carried(entry))]
