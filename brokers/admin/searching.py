"""A text is looked for in the messages of all queues and topics: where is this message?

Each is searched by its own action, which has bounds of its own. Of a topic the last 100,000 records are. One
request looks for some seconds, in turns, and says where the next one goes on.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import trio
from starlette.exceptions import HTTPException

from brokers.admin.listing import is_number, path_of
from shared.errors import BrokerError
from shared.objects import MESSAGES, SEARCHED_MAX, Action, Objects, ObjectsByProtocol
from shared.task_turns import TaskTurn

SECONDS = 5.0
FOUND_USUAL, FOUND_MAX = 20, 1000
OF_ONE_MAX = 10
"""Messages of one queue or topic: another one may have the one that is meant."""
SHOWN_MAX = 1000
"""Characters of a message's body in the answer."""
QUERY: Mapping[str, str] = {
    "contains": "the text that messages have in them",
    "after": "the `next` of the answer before",
    "limit": f"messages at most; {FOUND_USUAL}",
}


async def search(everything: ObjectsByProtocol, query: Mapping[str, str]) -> Mapping[str, Any]:
    """The messages in `items`, each with its `kind`, `protocol`, `name`, and `link`, the page's view of it.

    `next`: where the next request goes on; null: all was looked at. `partly`: the links of those that may
    have more of them: a bound was reached, or they could not be read.
    """
    contains, after = query.get("contains", ""), query.get("after", "")
    limit = query.get("limit", str(FOUND_USUAL))
    if not contains:
        raise HTTPException(400, "contains is missing: the text that messages have in them")
    if not (is_number(limit) and 1 <= int(limit) <= FOUND_MAX):
        raise HTTPException(400, f"limit is a number from 1 to {FOUND_MAX}")
    left, until = int(limit), trio.current_time() + SECONDS
    items: list[Mapping[str, Any]] = []
    partly: list[str] = []
    turn = TaskTurn()
    for key, protocol, objects, action, found in await _searched(everything, after):
        if turn.over_now():  # what is in memory is searched in one go
            await turn.others()
        arguments: dict[str, Any] = {"contains": contains, "limit": min(left, OF_ONE_MAX)}
        if "records_back" in action.takes:
            arguments["records_back"] = SEARCHED_MAX
        row = objects.row(found)
        if row is None:
            continue
        link = path_of(objects.kind, {"protocol": protocol, **row})
        try:
            answer = await action.call(found, arguments, False)
        except BrokerError:
            partly.append(link)
        else:
            of = {"kind": objects.kind.name, "protocol": protocol, "name": row["name"], "link": link}
            items += [{**of, **_beginning(message)} for message in answer["items"]]
            left -= len(answer["items"])
            if answer["next"] is not None:
                partly.append(link)
        if left <= 0 or trio.current_time() > until:
            return {"items": items, "next": key, "partly": partly}
    return {"items": items, "next": None, "partly": partly}


async def _searched(
    everything: ObjectsByProtocol, after: str
) -> Sequence[tuple[str, str, Objects, Action, Any]]:
    """All that holds messages which can be searched, in the order of a key, behind the key `after`."""
    searched = []
    turn = TaskTurn()
    for protocol, objects in everything:
        for action in objects.actions:
            if action.answers != MESSAGES or "contains" not in action.takes:
                continue
            for found in objects.items():
                await turn.item()
                key = f"{objects.kind.name}/{protocol}/{objects.name(found)}"
                if key > after:
                    searched.append((key, protocol, objects, action, found))
    searched.sort(key=itemgetter(0))
    return searched


def _beginning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with the beginning of its body."""
    (body,) = {"text", "base64"} & message.keys()
    if len(message[body]) <= SHOWN_MAX:
        return message
    return {**message, body: message[body][:SHOWN_MAX], "truncated": True}
