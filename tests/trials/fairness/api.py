"""What administrators do, beside clients at the limits."""

from tests.trials.fairness.amqp import bound_by_topics, declared
from tests.trials.fairness.dms import QUEUES
from tests.trials.fairness.logmq import connected, to_each, topics
from tests.trials.fairness.peers import Amqp, Dms, Logmq
from tests.trials.fairness.served import OBJECTS, Served, until

_LISTS = (
    *("queues", "queues?after=dms/queue-04900&limit=1000", "queues?match=*77", "queues?sort=-ready"),
    *("connections", "connections?limit=1000", "connections?sort=-bytes_in"),
    *("topics", "topics?limit=1000", "topics?sort=-bytes", "groups", "groups?limit=1000"),
)


def api_queues_topics_groups_and_connections_are_listed_and_scraped(served: Served) -> None:
    with Dms(served) as client, topics(served) as peer:
        client.create(*QUEUES)
        client.produce(*[QUEUES[7]] * 1000)
        peer.ask([b"COMMIT g topic-%d 5\n" % number for number in range(OBJECTS)])
    with connected(served), Logmq(served) as last:
        last.ask([b"PRODUCE topic-1 x\n"])
        served.begin()
        for path in _LISTS:
            assert served.get(path)["items"]
        for path in ("overview", "openapi.json", "exchanges", "bindings", "sessions"):
            served.get(path)
        assert served.get("queues?sort=-oldest_seconds&limit=1")["items"][0]["ready"] == 1000
        assert served.get(f"queues/dms/{QUEUES[7]}")["ready"] == 1000
        (first,) = served.get("connections?sort=-messages_in&limit=1")["items"]
        assert first["messages_in"] == 1
        assert served.get(f"connections/{first['id']}")["bytes_in"] > 12
        for path in ("/metrics", "/metrics/detailed?family=queues"):
            served.ask("GET", path)


def api_names_are_exported_and_imported(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
    topics(served).close()
    with Amqp(served) as peer:
        declared(peer, durable=True)
    served.begin()
    document = served.ask("GET", "/api/v1/definitions")
    served.ask("POST", "/api/v1/definitions", document)
    for number in range(OBJECTS):
        document["queues"].append({"protocol": "dms", "name": f"more-{number}"})
    served.ask("POST", "/api/v1/definitions", document)


def api_bindings_are_exported_and_imported(served: Served) -> None:
    with bound_by_topics(served):
        served.begin()
        document = served.ask("GET", "/api/v1/definitions")
        served.ask("POST", "/api/v1/definitions", document)


def api_settings_are_reloaded_beside_connections_which_an_administrator_closes(served: Served) -> None:
    with connected(served):
        served.begin()
        served.reload_with("linger_seconds = 3\n[logmq]\nretention_bytes = 10000000\n")
        for row in served.get("connections?protocol=logmq&limit=1000")["items"]:
            served.ask("DELETE", f"/api/v1/connections/{row['id']}")


def api_users_with_10_rules_each_are_taken_up_beside_connections(served: Served) -> None:
    rules = ", ".join(f'"*:read:orders-{number}-*"' for number in range(10))
    rows = "".join(f"[users.u{number}]\nallow = [{rules}]\n" for number in range(OBJECTS))
    with connected(served):
        served.begin()
        served.take_users(rows)
        served.take_users(rows.replace("orders", "sales"))


def api_250_bridges_begin_carry_and_end(served: Served) -> None:
    bridges = "".join(
        f'[[bridge]]\nname = "b{n}"\nfrom = "logmq:topic-{n}"\nto = "logmq:other-{n}"\nstart = "first"\n'
        for n in range(250)
    )
    with topics(served, 250) as peer:
        served.begin()
        served.reload_with(bridges)
        peer.ask(to_each(count=250) * 100)
        path = "/api/v1/topics?match=other-*&limit=1000"
        until(lambda: len(served.ask("GET", path)["items"]) == 250)
        served.reload_with("")
