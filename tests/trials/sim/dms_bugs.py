"""Bugs to plant in DMS; see bugs.py."""

from typing import Any

from dms import opening
from dms.broker import Broker
from dms.keeper import Keeper
from dms.mortality import Mortality
from dms.opening import Replay
from dms.queue import Queue
from dms.reading import Reading
from dms.session import Session
from dms.times import Times
from shared.storage.log import Ticket

Change = tuple[Any, str, Any]


def produce_ok_before_the_sync() -> list[Change]:
    enqueue = Keeper.enqueue

    def enqueue_done(self: Keeper, *arguments: Any) -> Ticket | None:
        if enqueue(self, *arguments) is None:
            return None
        done = Ticket()
        done.resolve(None)
        return done

    return [(Keeper, "enqueue", enqueue_done)]


def ack_ok_before_the_sync() -> list[Change]:
    ack = Keeper.ack

    def ack_done(self: Keeper, *arguments: Any) -> Ticket | None:
        if ack(self, *arguments) is None:
            return None
        done = Ticket()
        done.resolve(None)
        return done

    return [(Keeper, "ack", ack_done)]


def a_snapshot_forgets_what_is_older() -> list[Change]:
    return [(Keeper, "_kept_parts", lambda self, now: ([], 0))]


def a_nack_loses_the_place() -> list[Change]:
    put_back = Queue.put_back

    def put_back_behind(self: Queue, outs: Any, *, nacked: bool) -> None:
        if not nacked or self.keeper is None or self.cold or self.head == self.end:
            put_back(self, outs, nacked=nacked)
            return
        (out,) = outs  # it changes places with the first of the row
        first, self.bodies[0] = self.bodies[0], out[2]
        put_back(self, [(self, out[1], first, out[3])], nacked=True)

    return [(Queue, "put_back", put_back_behind)]


def a_lost_connection_keeps_its_messages() -> list[Change]:
    return [(Session, "give_back", lambda self: None)]


def what_is_held_is_delivered_again() -> list[Change]:
    take = Queue._take

    def take_and_keep_one(self: Queue, count: int) -> list[bytes]:
        taken = take(self, count)
        if len(taken) > 1:
            seq = self.head - 1
            self.back[seq] = taken[-1], 1
            self.returned.append(seq)
        return taken

    return [(Queue, "_take", take_and_keep_one)]


def replay_forgets_acks_out_of_order() -> list[Change]:
    gone = Replay._gone

    def only_the_front(self: Replay, run: Any) -> None:
        if run.first >= self.head or run.first == min(self.out, default=run.first):
            gone(self, run)

    return [(Replay, "_gone", only_the_front)]


def the_dead_move_in_two_entries() -> list[Change]:
    def move_bit_by_bit(
        self: Broker, source: Queue, target: Queue, seqs: Any, letters: Any, reason: str
    ) -> None:
        assert source.keeper is not None
        left = source.keeper.append(*source.keeper.moving(seqs, reason, target.text), reserved=True)
        assert left is not None
        left[1].when_done(lambda done: target.produce(letters, sum(map(len, letters))) and None)

    return [(Broker, "move", move_bit_by_bit)]


def the_dead_are_left_behind() -> list[Change]:
    def copy_only(self: Broker, source: Queue, target: Queue, seqs: Any, letters: Any, reason: str) -> None:
        target.produce(letters, sum(map(len, letters)))

    return [(Broker, "move", copy_only)]


def a_restart_ends_all_delays() -> list[Change]:
    restore = opening._restore_times

    def released(queue: Queue, replay: Replay) -> None:
        restore(queue, replay)
        if queue.mortality is not None:
            queue.mortality.delays.clear()
            queue.mortality.released = queue.tail

    return [(opening, "_restore_times", released)]


def a_restart_begins_times_anew() -> list[Change]:
    restore = opening._restore_times

    def renewed(queue: Queue, replay: Replay) -> None:
        replay.came = [(queue.broker.times.now_ms(), upto) for _, upto in replay.came]
        restore(queue, replay)

    return [(opening, "_restore_times", renewed)]


def times_go_on_while_nothing_runs() -> list[Change]:
    not_before = Times.not_before
    return [(Times, "not_before", lambda self, age_ms: not_before(self, age_ms + 60))]


def what_is_past_its_time_goes_out() -> list[Change]:
    on_time = Mortality.on_time

    def delays_only(self: Mortality, now: int) -> None:
        self.lives.clear()
        on_time(self, now)

    return [(Mortality, "on_time", delays_only)]


def a_nack_costs_no_time() -> list[Change]:
    returned = Mortality.returned

    def returned_at_once(self: Mortality, seq: int, deliveries: int, *, nacked: bool) -> None:
        returned(self, seq, deliveries, nacked=False)

    return [(Mortality, "returned", returned_at_once)]


def tries_never_end() -> list[Change]:
    returned = Mortality.returned

    def returned_for_the_first_time(self: Mortality, seq: int, deliveries: int, *, nacked: bool) -> None:
        returned(self, seq, 1, nacked=nacked)

    return [(Mortality, "returned", returned_for_the_first_time)]


def two_reads_are_under_way() -> list[Change]:
    takes_more = Reading._takes_more

    def as_if_none_were(self: Reading, data: Any) -> bool:
        self._fetching = False
        return takes_more(self, data)

    return [(Reading, "_takes_more", as_if_none_were)]
