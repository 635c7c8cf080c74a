"""What pub/sub clients are subscribed to after a cut, compared with what they asked for.

Pure: books and states in, faults out. No command is answered, so the promise is about time: what a client
sent at least a second before the cut has come to pass, and what it sent later may have been taken or not. But
one client's commands are taken in the order in which they were sent, so what is found is what stood before
and the first of them, up to one: never a later one without an earlier one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from tests.trials.tally import Verdict

PROMISED_SECONDS = 1.0
NONE, PLAIN, KEPT = "none", "plain", "kept"

Subscription = tuple[str, str]
"""Of a client, to a topic."""


@attrs.frozen
class Asked:
    """A command: from then on the client's subscription to the topic was to be in this state."""

    at: float
    topic: str
    state: str


@attrs.define(eq=False)
class ClientBook:
    """`settled`: what a recovery has shown of the client; `asked`: its commands since, in order."""

    settled: dict[str, str] = attrs.field(factory=dict)
    asked: list[Asked] = attrs.field(factory=list)


@attrs.define(eq=False)
class AwayBook:
    """What was published, numbered from 0, to a topic that one client keeps while it is away. Now and then it
    comes and takes all that there is.

    `sent`: when each was. `given`: when it was given each. `visited`: when it last came, and how many had
    been sent then. `settled`: so many were judged.
    """

    sent: list[float] = attrs.field(factory=list)
    given: dict[int, float] = attrs.field(factory=dict)
    visited: tuple[float, int] = (-math.inf, 0)
    settled: int = 0

    def visit(self, numbers: Sequence[int], now: float) -> Iterator[str]:
        """It was given these. Yields what is wrong with them."""
        if list(numbers) != sorted(set(numbers)):
            yield f"what was kept is out of order, or twice: {numbers[:20]}"
        if twice := self.given.keys() & set(numbers):
            yield f"{len(twice)} kept messages came again, the first {min(twice)}"
        self.given |= dict.fromkeys(numbers, now)
        self.visited = now, len(self.sent)

    def started(self, until: float) -> None:
        """The server died after that. What it was given since may come again."""
        self.given = {number: at for number, at in self.given.items() if at <= until}

    def judge(self, numbers: Sequence[int], now: float, cut: float, promised_until: float) -> Verdict:
        """Compare what it is given after a recovery. What was sent by `promised_until` must have come, and
        none twice; at -inf nothing was ever promised. What it was given in the last second before the cut may
        come again; and of a visit then nobody knows what was given.
        """
        known = self.given.keys() | set(numbers)
        until = min(cut - PROMISED_SECONDS, promised_until)
        if self.visited[0] > until:
            known |= set(range(self.visited[1]))
        self.started(until)
        due = [at for at in range(self.settled, len(self.sent)) if self.sent[at] <= promised_until]
        lost = [at for at in due if at not in known]
        verdict = Verdict(kept=len(due) - len(lost), lost=len(lost))
        if lost:
            verdict.faults.append(f"{len(lost)} of {len(due)} kept messages are lost, the first {lost[0]}")
        self.settled = len(self.sent)
        verdict.faults += self.visit(numbers, now)
        return verdict


@attrs.define(eq=False)
class PubsubBook:
    """Everything that was asked for. `cut`: when the last load ended."""

    clients: dict[str, ClientBook] = attrs.field(factory=dict)
    away: AwayBook = attrs.field(factory=AwayBook)
    ever: set[tuple[Subscription, str]] = attrs.field(factory=set)
    cut: float = math.inf
    mode: str = "always"

    def ask(self, client: str, topic: str, state: str, now: float) -> None:
        self.clients.setdefault(client, ClientBook()).asked.append(Asked(now, topic, state))
        self.ever.add(((client, topic), state))

    def promised(self, cut: float) -> int:
        """How many commands must have come to pass."""
        return sum(_least(book, cut - PROMISED_SECONDS) for book in self.clients.values())

    def judge(self, shown: Mapping[Subscription, str], promised_until: float) -> Verdict:
        """Compare, and take what is shown for granted from now on.

        What was sent by `promised_until` must have come to pass. If that is -inf nothing was ever promised,
        not even what an earlier recovery has shown: then a subscription may be in any state that it ever had.
        """
        by_client: dict[str, dict[str, str]] = {client: {} for client in self.clients}
        for (client, topic), state in shown.items():
            by_client.setdefault(client, {})[topic] = state
        verdict = Verdict()
        for client, topics in sorted(by_client.items()):
            book = self.clients.setdefault(client, ClientBook())
            if promised_until == -math.inf:
                verdict.faults += self._never_asked(client, topics)
            else:
                verdict.add(_judge_client(client, book, topics, _least(book, promised_until)))
            book.settled = topics
            book.asked.clear()
        return verdict

    def _never_asked(self, client: str, topics: Mapping[str, str]) -> Iterator[str]:
        for topic, state in topics.items():
            if ((client, topic), state) not in self.ever:
                yield f"{client}: {topic} is {state}, which was never asked for"


def _least(book: ClientBook, until: float) -> int:
    return sum(asked.at <= until for asked in book.asked)


def _judge_client(client: str, book: ClientBook, topics: Mapping[str, str], least: int) -> Verdict:
    """The most commands that explain what is found."""
    came = _explained(book.settled, book.asked, topics)
    if came is None:
        wrong = "; ".join(_differences(book, topics, least))
        return Verdict(faults=[f"{client}: no first part of its commands leads to this: {wrong}"], lost=least)
    verdict = Verdict(kept=min(came, least), extra=max(came - least, 0), lost=len(book.asked) - came)
    if came < len(book.asked):
        verdict.oldest_lost = book.asked[came].at
    if came < least:
        first = book.asked[came]
        verdict.faults.append(
            f"{client}: {least - came} of {least} promised commands undone, the first of them "
            f"{first.state} for {first.topic} at {first.at:.4f} s"
        )
    return verdict


def _explained(settled: Mapping[str, str], asked: Sequence[Asked], topics: Mapping[str, str]) -> int | None:
    """After how many commands, at most, everything was as it is found; None: never."""
    now = dict(settled)
    wrong = {topic for topic in {*now, *topics} if now.get(topic, NONE) != topics.get(topic, NONE)}
    came = 0 if not wrong else None
    for number, one in enumerate(asked, start=1):
        (wrong.discard if one.state == topics.get(one.topic, NONE) else wrong.add)(one.topic)
        if not wrong:
            came = number
    return came


def _differences(book: ClientBook, topics: Mapping[str, str], least: int) -> Iterator[str]:
    """For people: what each topic that cannot be as it is was promised to be, and was sent to since."""
    states = dict(book.settled)
    later: dict[str, list[str]] = {}
    for number, asked in enumerate(book.asked):
        if number < least:
            states[asked.topic] = asked.state
        else:
            later.setdefault(asked.topic, []).append(asked.state)
    told = False
    for topic in sorted({*states, *topics, *later}):
        found, promised = topics.get(topic, NONE), states.get(topic, NONE)
        if found not in (promised, *later.get(topic, ())):
            told = True
            yield f"{topic} is {found}, promised was {promised}, later {later.get(topic, [])}"
    if not told:
        yield "each topic may be as it is, but not all of them at once: a hole"
