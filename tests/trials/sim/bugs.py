"""Planted bugs: what a trial must find to be worth running. Each is a small change of the real code, made
from outside for the time of one run; the product has no switch for any of them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from logmq.groups import Groups
from shared.storage import format, recovery, replay
from shared.storage.checkpoint import Checkpointer
from shared.storage.commit import Commit
from shared.storage.committer import Committer
from shared.storage.journal import Journal, PoisonError
from shared.storage.log import Log, Ticket
from tests.trials.sim import dms_bugs
from tests.trials.sim.disk import FaultyDisk
from tests.trials.sim.run import Verdict, play

Change = tuple[Any, str, Any]
"""An object, the name of an attribute, and what stands there instead."""

_SLIPS = ("TypeError", "AttributeError", "NameError")
"""A bug that is found by one of these proves nothing."""


@attrs.frozen
class Bug:
    """`seeds_max`: one of so many seeds, from 0 on, must find it, in runs of this profile."""

    summary: str
    changes: Callable[[], list[Change]]
    profile: str
    seeds_max: int = 100

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, instead in self.changes():
                stack.enter_context(patch.object(owner, name, instead))
            yield


def find(bug: Bug) -> tuple[Verdict | None, int]:
    """The first seed that breaks with the bug planted (None: none does), and how many were tried."""
    for seed in range(bug.seeds_max):
        verdict = play(seed, profile=bug.profile, bug=bug.planted())
        if verdict.broken is not None:
            last = verdict.broken.strip().splitlines()[-1]
            if last.startswith(_SLIPS):
                raise AssertionError(f"what is planted does not fit the code any more: {last}")
            return verdict, seed + 1
    return None, bug.seeds_max


# -- acknowledging


def _acknowledge_before_the_sync() -> list[Change]:
    run = Commit.run

    def run_then_sync_with_the_next(self: Commit) -> None:
        try:
            self.journal.sync()  # what the commit before this one has written, and acknowledged
        except PoisonError as error:
            self.poison = error
            return
        run(self)

    return [(Commit, "run", run_then_sync_with_the_next), (Commit, "_sync", lambda self: None)]


def _retry_a_failed_sync() -> list[Change]:
    sync = Journal.sync

    def sync_again(self: Journal) -> None:
        try:
            sync(self)
        except PoisonError:
            sync(self)

    return [(Journal, "sync", sync_again)]


def _show_before_the_sync() -> list[Change]:
    sync, apply = Commit._sync, Commit._apply

    def show_then_sync(self: Commit) -> None:
        apply(self, self.batches[: self.good])
        for batch in self.batches[: self.good]:
            for log, part in batch.appends.items():
                target = self.logs[log]
                if not target.closed:
                    log.open_entry = target.open_entry
                    log.visible = part.end
        sync(self)

    def apply_unless_shown(self: Commit, good: Any) -> None:
        if not self.synced:
            apply(self, good)

    return [(Commit, "_sync", show_then_sync), (Commit, "_apply", apply_unless_shown)]


def _acknowledge_a_commit_at_once() -> list[Change]:
    commit = Groups.commit

    def commit_done(self: Groups, *arguments: Any) -> Ticket:
        commit(self, *arguments)
        done = Ticket()
        done.resolve(None)
        return done

    return [(Groups, "commit", commit_done)]


def _batch_and_its_memory_apart() -> list[Change]:
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


# -- names


def _forget_folder(*folders: str) -> Callable[[], list[Change]]:
    def changes() -> list[Change]:
        sync_folder = FaultyDisk.sync_folder

        def sync_others(self: FaultyDisk, path: str) -> None:
            if path not in folders:
                sync_folder(self, path)

        return [(FaultyDisk, "sync_folder", sync_others)]

    return changes


# -- starting again


def _replay_skips_the_last_batch() -> list[Change]:
    scan = replay.scan

    def scan_short(*arguments: Any) -> Any:
        found = scan(*arguments)
        return attrs.evolve(found, batches=found.batches[:-1])

    return [(replay, "scan", scan_short)]


def _a_delete_is_forgotten() -> list[Change]:
    gather = recovery._gather

    def gather_without(*arguments: Any) -> Any:
        changes = gather(*arguments)
        changes.deleted.clear()
        return changes

    return [(recovery, "_gather", gather_without)]


def _a_torn_batch_is_believed() -> list[Change]:
    return [(format, "batch_is_good", lambda batch, data: True)]


def _recovery_is_not_synced() -> list[Change]:
    return [(recovery, "_sync", lambda *arguments: None)]


# -- checkpoints


def _a_checkpoint_syncs_no_log() -> list[Change]:
    async def sync_none(*_: object) -> None: ...

    return [(Checkpointer, "_sync_files", sync_none)]


def _stock_is_taken_in_the_middle_of_a_commit() -> list[Change]:
    return [(Committer, "when_idle", lambda self, callback: callback())]


def _stock_leaves_out_what_is_to_be_deleted() -> list[Change]:
    return [(Log, "gone", property(lambda self: self.deleted))]


# -- failing writes, weaker modes


def _a_failed_write_is_not_taken_back() -> list[Change]:
    return [(Committer, "_take_back", lambda self, logs: None)]


def _an_interval_never_ends() -> list[Change]:
    count = Committer._count

    def count_only(self: Committer, commit: Commit, good: Any) -> None:
        count(self, commit, good)
        self._sync_by = float("inf")

    return [(Committer, "_count", count_only)]


def _unjournaled_bytes_have_no_marks() -> list[Change]:
    return [(Commit, "_write_direct_entries", lambda self: None)]


BUGS: dict[str, Bug] = {
    "acknowledge-before-sync": Bug(
        "a commit is synced when the next one is made", _acknowledge_before_the_sync, "answers"
    ),
    "retry-failed-sync": Bug(
        "a sync that failed is tried again, and called good", _retry_a_failed_sync, "failing syncs"
    ),
    "forget-folder-sync-journal": Bug(
        "the journal's folder is not synced after a segment is made or renamed",
        _forget_folder("journal"),
        "mixed",
    ),
    "forget-folder-sync-catalog": Bug(
        "the data folder is not synced after the catalog is renamed", _forget_folder(""), "mixed"
    ),
    "forget-folder-sync-logs": Bug(
        "a checkpoint does not sync the folders of new logs",
        _forget_folder("logmq", "logmq-tables"),
        "checkpoints",
    ),
    "show-before-sync": Bug(
        "readers see records before the sync that covers them", _show_before_the_sync, "readers"
    ),
    "acknowledge-commit-at-once": Bug(
        "COMMIT is answered before the group's offset is durable", _acknowledge_a_commit_at_once, "groups"
    ),
    "batch-apart-from-its-memory": Bug(
        "a BATCH and the memory of it are two batches of the journal", _batch_and_its_memory_apart, "batches"
    ),
    "replay-skips-last-batch": Bug(
        "replay leaves out the last batch", _replay_skips_the_last_batch, "answers"
    ),
    "delete-forgotten": Bug("replay takes no notice of DELETE entries", _a_delete_is_forgotten, "deletes"),
    "torn-batch-believed": Bug(
        "replay does not check a batch's CRC", _a_torn_batch_is_believed, "torn writes"
    ),
    "recovery-not-synced": Bug(
        "recovery starts a new journal without syncing what it replayed", _recovery_is_not_synced, "restarts"
    ),
    "checkpoint-without-sync": Bug(
        "a checkpoint frees segments, and syncs no log", _a_checkpoint_syncs_no_log, "checkpoints"
    ),
    "stock-amid-commit": Bug(
        "a checkpoint takes stock while a commit is under way",
        _stock_is_taken_in_the_middle_of_a_commit,
        "checkpoints",
    ),
    "stock-amid-deletion": Bug(
        "a checkpoint leaves out a log whose deletion is asked for and not durable",
        _stock_leaves_out_what_is_to_be_deleted,
        "deletes amid checkpoints",
    ),
    "failed-write-not-taken-back": Bug(
        "the end of a log stays where a failed write would have brought it",
        _a_failed_write_is_not_taken_back,
        "full disks",
    ),
    "interval-never-ends": Bug("mode interval never syncs", _an_interval_never_ends, "intervals"),
    "unmarked-direct-writes": Bug(
        "mode none writes records without their marks", _unjournaled_bytes_have_no_marks, "weak modes"
    ),
    "dms-produce-before-sync": Bug(
        "PRODUCE_OK is sent before the sync", dms_bugs.produce_ok_before_the_sync, "queues that answer"
    ),
    "dms-ack-before-sync": Bug(
        "ACK_OK is sent before the sync", dms_bugs.ack_ok_before_the_sync, "queues that answer"
    ),
    "dms-snapshot-forgets-older": Bug(
        "a snapshot leaves out what is held or has come back",
        dms_bugs.a_snapshot_forgets_what_is_older,
        "queues with snapshots",
    ),
    "dms-nack-loses-place": Bug(
        "a NACK puts a message behind the next", dms_bugs.a_nack_loses_the_place, "one worker"
    ),
    "dms-keeps-what-was-held": Bug(
        "a connection's end gives nothing back",
        dms_bugs.a_lost_connection_keeps_its_messages,
        "one worker",
    ),
    "dms-delivers-what-is-held": Bug(
        "the last of several messages that go out together goes out twice",
        dms_bugs.what_is_held_is_delivered_again,
        "queues",
    ),
    "dms-replay-forgets-acks": Bug(
        "replay believes ACKs of the oldest message only",
        dms_bugs.replay_forgets_acks_out_of_order,
        "queues that answer",
    ),
    "dms-dead-move-in-two-entries": Bug(
        "the dead leave their queue in one entry of the journal, and come in another",
        dms_bugs.the_dead_move_in_two_entries,
        "queues of mortals",
        seeds_max=300,
    ),
    "dms-dead-left-behind": Bug(
        "the record that the dead have left is forgotten",
        dms_bugs.the_dead_are_left_behind,
        "queues of mortals",
    ),
    "dms-restart-ends-delays": Bug(
        "after a restart nothing is delayed any more", dms_bugs.a_restart_ends_all_delays, "queues of mortals"
    ),
    "dms-restart-begins-times-anew": Bug(
        "a restart gives lifetimes and delays in full again",
        dms_bugs.a_restart_begins_times_anew,
        "queues of mortals",
    ),
    "dms-times-run-on": Bug(
        "a restart takes 60 ms off everything", dms_bugs.times_go_on_while_nothing_runs, "queues of mortals"
    ),
    "dms-expired-goes-out": Bug(
        "what is past its lifetime is delivered", dms_bugs.what_is_past_its_time_goes_out, "queues of mortals"
    ),
    "dms-nack-costs-no-time": Bug(
        "a NACK delays nothing", dms_bugs.a_nack_costs_no_time, "queues of mortals"
    ),
    "dms-tries-never-end": Bug("deliveries are not counted", dms_bugs.tries_never_end, "queues of mortals"),
    "dms-reads-twice": Bug(
        "what is cold is read again while it is being read",
        dms_bugs.two_reads_are_under_way,
        "queues of mortals",
    ),
}
