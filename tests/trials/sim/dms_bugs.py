"""Bugs to plant in DMS; see bugs.py."""

from typing import Any

from dms.keeper import Keeper
from dms.opening import Replay
from dms.queue import Queue
from dms.session import Session
from shared.storage.rounds import Ticket

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
