"""Topics: logs of the namespace `logmq`. The first write makes a topic."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from logmq.readers import Waiters
from logmq.retentions import NOTHING_SET, OwnRetention, Retentions
from logmq.settings import LogmqSettings
from logmq.wire import Code, Refusal, check_memory, no_topic, refusal_for, topic_untrusted
from shared.budget import Account, unbounded
from shared.errors import StoreError
from shared.storage.settings import Durability
from shared.storage.store import Log, Namespace, Ticket
from shared.task_turns import TaskTurn

TOPIC_BYTES = 4 << 10
"""Memory of a topic with its log, without records: 3.4 KB with a name of 188 characters."""


class Topics:
    """All topics by name. They are charged to `budget`, and so are waiting readers."""

    def __init__(
        self,
        namespace: Namespace,
        settings: LogmqSettings,
        budget: Account | None = None,
        retentions: Retentions | None = None,
    ) -> None:
        self.retentions = retentions or Retentions(namespace)
        budget = budget or unbounded()
        self._memory = budget.account("names").account("topics")
        self._of_users = budget.new_shares()
        self._namespace = namespace
        self._settings = settings
        self.known: dict[bytes, Log] = {}
        """By name as in requests, checked. Some of these logs may be deleted."""
        self._names = sorted(namespace.logs)
        """All names, sorted, and maybe some deleted ones: sorting 100,000 takes 50 ms."""
        self._count()
        readers = budget.account("connections").account("readers", budget.limit_bytes // 4)
        self.waiters = Waiters(namespace.logs, readers)
        self.on_made: set[Callable[[Log], None]] = set()
        """Called with each topic that is created."""
        for log in namespace.logs.values():
            self.set_retention(log)
        namespace.adopted = self._made

    async def take_settings(self, settings: LogmqSettings) -> None:
        """Use other limits and patterns from now on; each topic's retention follows in slices."""
        self._settings = settings
        self._namespace.retention = settings.retention_usual
        turn = TaskTurn()
        for log in self.all():
            self.set_retention(log)
            await turn.item()

    def set_retention(self, log: Log) -> None:
        """Have a topic keep what its own retention says, else the settings."""
        usual = self._settings.retention(log.name)
        own = self.retentions.of(log)
        log.retention = usual if own == NOTHING_SET else own.over(usual or self._settings.retention_usual)
        log.local_retention = own.over_local(self._settings.local_retention(log.name))

    async def look_anew(self) -> None:
        """Take what topics keep from the table, which another server has written. All else shows by itself.
        Raises StoreError."""
        by_id, turn = self.by_id(), TaskTurn()
        for log_id in await self.retentions.look_anew():
            if (log := by_id.get(log_id)) is not None:
                self.set_retention(log)
            await turn.item()

    async def retain(self, log: Log, own: OwnRetention) -> Ticket:
        """Have a topic keep as much as that, from now on. Raises StoreError."""
        ticket = await self.retentions.set(log, own)
        self.set_retention(log)
        return ticket

    def __len__(self) -> int:
        return len(self._namespace.logs)

    def page(self, after: str, most: int) -> Sequence[str]:
        """The next `most` names behind `after`, sorted; fewer if those are the last."""
        start = bisect_right(self._names, after)
        return self._names[start : start + most]

    def all(self) -> list[Log]:
        """All topics, in any order."""
        return list(self._namespace.logs.values())

    def by_id(self) -> dict[int, Log]:
        return {log.id: log for log in self._namespace.logs.values()}

    def find(self, name: str) -> Log | None:
        return self._namespace.logs.get(name)

    def find_untrusted(self, topic: bytes) -> Log | None:
        """The topic that a request names; None if there is none. Raises Refusal (BAD_TOPIC)."""
        log = self.known.get(topic)
        if log is not None and not log.deleted:
            return log
        log = self._namespace.logs.get(topic_untrusted(topic))
        if log is not None:
            self.known[topic] = log
        return log

    def existing_untrusted(self, topic: bytes) -> Log:
        """The topic of a request, which must exist. Raises Refusal (BAD_TOPIC, NO_TOPIC)."""
        log = self.find_untrusted(topic)
        if log is None:
            raise no_topic(topic.decode())
        return log

    def writable_untrusted(self, topic: bytes, user: str = "") -> Log:
        """The topic that a request of a user writes to, created if missing. Raises Refusal."""
        log = self.known.get(topic)
        if log is not None and not log.deleted:
            return log
        log = self.find_untrusted(topic)
        if log is None:
            log, _ = self.create(topic.decode(), user=user)
            self.known[topic] = log
        return log

    @property
    def topics_max(self) -> int:
        return self._settings.topics_max

    def delete(self, log: Log, tombstone: tuple[Log, bytes, int]) -> Ticket:
        """Delete a topic: readers get NO_TOPIC. `tombstone`: of `Groups`. Raises StoreError."""
        self.known.pop(log.name.encode(), None)
        ticket = self._namespace.delete(log.name, [tombstone])
        self._of_users.drop(log.id)
        place = bisect_left(self._names, log.name)
        if self._names[place : place + 1] == [log.name]:
            del self._names[place]
        self._count()
        return ticket

    def _count(self) -> None:
        """Charge the budget for topics."""
        self._memory.charge(TOPIC_BYTES * len(self) - self._memory.used_bytes)

    def create(
        self, name: str, durability: Durability | None = None, *, user: str = ""
    ) -> tuple[Log, Ticket]:
        """Create a topic; the settings decide what is not given. The ticket is done when it is durable.
        Raises Refusal."""
        if len(self) >= self._settings.topics_max:
            raise Refusal(Code.LIMIT, f"there are topics_max = {self._settings.topics_max} topics already")
        if not self._of_users.fits(user, self._settings.topics_max):
            raise Refusal(Code.LIMIT, f"{user} has his share of topics_max")
        check_memory(self._memory, TOPIC_BYTES)
        try:
            log, ticket = self._namespace.create(
                name, durability or self._settings.for_topic(name).durability
            )
        except StoreError as error:
            raise refusal_for(error) from None
        self._of_users.take(log.id, user)
        self._made(log)
        return log, ticket

    def _made(self, log: Log) -> None:
        """There is a new topic."""
        self.set_retention(log)
        place = bisect_left(self._names, log.name)
        if self._names[place : place + 1] != [log.name]:  # it may be left from a topic whose creation failed
            self._names.insert(place, log.name)
        self._count()
        self.waiters.topic_made(log)
        for tell in tuple(self.on_made):
            tell(log)
