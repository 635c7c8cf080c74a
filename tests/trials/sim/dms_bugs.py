"""Bugs to plant in DMS; see bugs.py."""

from collections.abc import Sequence
from typing import Any

from dms import opening
from dms.cold import ColdRow
from dms.engine import Engine, Queue
from dms.expiry import Expiry
from dms.opening import LogReplay
from dms.queue_log import QueueLog
from dms.times import Times
from shared.storage.log import Ticket

Change = tuple[Any, str, Any]


def produce_ok_before_the_sync() -> list[Change]:
    return _done_at_once("produce")


def ack_ok_before_the_sync() -> list[Change]:
    return _done_at_once("ack")


def _done_at_once(name: str) -> list[Change]:
    sound = getattr(QueueLog, name)

    def done_at_once(self: QueueLog, *arguments: Any) -> Ticket:
        sound(self, *arguments)
        done = Ticket()
        done.resolve(None)
        return done

    return [(QueueLog, name, done_at_once)]


def a_snapshot_forgets_what_is_older() -> list[Change]:
    return [(Queue, "older_than_row", lambda self: [])]


def a_nack_loses_the_place() -> list[Change]:
    put_back = Queue.put_back

    def put_back_behind(self: Queue, outs: Any, *, nacked: bool) -> None:
        if not nacked or self.log is None or self.is_cold or self.head == self.end:
            put_back(self, outs, nacked=nacked)
            return
        (out,) = outs  # it changes places with the first of the row
        first, self.bodies[0] = self.bodies[0], out[2]
        put_back(self, [(self, out[1], first, out[3])], nacked=True)

    return [(Queue, "put_back", put_back_behind)]


def a_lost_connection_keeps_its_messages() -> list[Change]:
    return [(Engine, "give_back", lambda self, consumer: None)]


def what_is_held_is_delivered_again() -> list[Change]:
    take = Queue._take

    def take_and_keep_one(self: Queue, count: int) -> Sequence[bytes]:
        taken = take(self, count)
        if len(taken) > 1:
            seq = self.head - 1
            self.back[seq] = taken[-1], 1
            self.returned.append(seq)
        return taken

    return [(Queue, "_take", take_and_keep_one)]


def replay_forgets_acks_out_of_order() -> list[Change]:
    gone = LogReplay._gone

    def only_the_front(self: LogReplay, run: Any) -> None:
        if run.first >= self.head or run.first == min(self.out, default=run.first):
            gone(self, run)

    return [(LogReplay, "_gone", only_the_front)]


def the_dead_move_in_two_entries() -> list[Change]:
    def move_bit_by_bit(
        self: Engine, source: Queue, target: Queue, seqs: Any, letters: Any, reason: Any
    ) -> None:
        assert source.log is not None
        _, left = source.log.append(*source.log.moving(seqs, reason, target.text), reserved=True)

        def arrive(done: Ticket) -> None:
            target.produce(letters, sum(map(len, letters)))

        left.when_done(arrive)

    return [(Engine, "move", move_bit_by_bit)]


def the_dead_are_left_behind() -> list[Change]:
    def copy_only(self: Engine, source: Queue, target: Queue, seqs: Any, letters: Any, reason: Any) -> None:
        target.produce(letters, sum(map(len, letters)))

    return [(Engine, "move", copy_only)]


def a_restart_ends_all_delays() -> list[Change]:
    restore = opening._restore_times

    def released(queue: Queue, replay: LogReplay) -> None:
        restore(queue, replay)
        if queue.expiry is not None:
            queue.expiry.delays.clear()
            queue.expiry.released = queue.tail

    return [(opening, "_restore_times", released)]


def a_restart_begins_times_anew() -> list[Change]:
    restore = opening._restore_times

    def renewed(queue: Queue, replay: LogReplay) -> None:
        replay.came = [(queue.engine.times.now_ms(), upto) for _, upto in replay.came]
        restore(queue, replay)

    return [(opening, "_restore_times", renewed)]


def times_go_on_while_nothing_runs() -> list[Change]:
    not_before = Times.not_before
    return [(Times, "not_before", lambda self, age_ms: not_before(self, age_ms + 60))]


def what_is_past_its_time_goes_out() -> list[Change]:
    on_time = Expiry.on_time

    def delays_only(self: Expiry, now: int) -> None:
        self.lifetimes.clear()
        on_time(self, now)

    return [(Expiry, "on_time", delays_only)]


def a_nack_costs_no_time() -> list[Change]:
    on_returned = Expiry.on_returned

    def returned_at_once(self: Expiry, seq: int, deliveries: int, *, nacked: bool) -> None:
        on_returned(self, seq, deliveries, nacked=False)

    return [(Expiry, "on_returned", returned_at_once)]


def tries_never_end() -> list[Change]:
    on_returned = Expiry.on_returned

    def returned_for_the_first_time(self: Expiry, seq: int, deliveries: int, *, nacked: bool) -> None:
        on_returned(self, seq, 1, nacked=nacked)

    return [(Expiry, "on_returned", returned_for_the_first_time)]


def two_reads_are_under_way() -> list[Change]:
    takes_more = ColdRow._takes_more

    def as_if_none_were(self: ColdRow, data: Any) -> bool:
        self._fetching = False
        return takes_more(self, data)

    return [(ColdRow, "_takes_more", as_if_none_were)]
