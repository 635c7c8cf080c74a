"""What administrators do, beside clients at the limits."""

from pamqp import commands

from tests.trials.fairness.amqp import bound_by_topics
from tests.trials.fairness.dms import QUEUES
from tests.trials.fairness.logmq import connected, to_each, topics
from tests.trials.fairness.peers import Amqp, Dms, Logmq, crowd
from tests.trials.fairness.served import Served, until


def api_50000_queues_are_listed(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
        client.produce(*["queue-01000"] * 1000)
        served.begin()
        for query in ("", "?after=dms/queue-49000&limit=1000", "?match=*77", "?sort=-ready"):
            assert served.get(f"queues{query}")["items"]
        assert served.get("queues?sort=-oldest_seconds&limit=1")["items"][0]["ready"] == 1000
        assert served.get("queues/dms/queue-01000")["ready"] == 1000
        for path in ("overview", "openapi.json", "exchanges", "bindings"):
            served.get(path)


def api_10000_connections_are_listed(served: Served) -> None:
    with crowd(10_000, lambda _: Logmq(served)), Logmq(served) as last:
        last.ask([b"PRODUCE t x\n"])
        served.begin()
        for path in ("connections", "connections?limit=1000", "connections?sort=-bytes_in", "sessions"):
            served.get(path)
        found = served.get("connections?sort=-messages_in&limit=1")["items"]
        assert found[0]["messages_in"] == 1
        assert served.get(f"connections/{found[0]['id']}")["bytes_in"] == 12


def api_20000_topics_and_their_groups_are_listed(served: Served) -> None:
    with topics(served, 20_000) as peer:
        peer.ask([b"COMMIT g topic-%d 5\n" % number for number in range(20_000)])
        served.begin()
        for path in ("topics", "topics?limit=1000", "topics?sort=-bytes", "groups", "groups?limit=1000"):
            assert served.get(path)["items"]


def api_30000_names_are_exported_and_imported(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES[:10_000])
    topics(served, 10_000).close()
    with Amqp(served) as peer:
        for at in range(0, 10_000, 500):
            peer.say(*(commands.Queue.Declare(queue=f"q{n}", durable=True) for n in range(at, at + 500)))
            peer.wait("Queue.DeclareOk", 500)
    served.begin()
    document = served.ask("GET", "/api/v1/definitions")
    served.ask("POST", "/api/v1/definitions", document)
    for number in range(10_000):
        document["queues"].append({"protocol": "dms", "name": f"more-{number}"})
    served.ask("POST", "/api/v1/definitions", document)


def api_10000_bindings_are_exported_and_imported(served: Served) -> None:
    with bound_by_topics(served) as peer:
        served.begin()
        document = served.ask("GET", "/api/v1/definitions")
        served.ask("POST", "/api/v1/definitions", document)
        peer.call(commands.Exchange.Delete(exchange="e"))
        served.ask("POST", "/api/v1/definitions", document)


def api_10000_connections_are_closed_by_an_administrator(served: Served) -> None:
    with connected(served, 10_000):
        found = [row["id"] for row in served.get("connections?protocol=logmq&limit=1000")["items"]]
        served.begin()
        for each in found:
            served.ask("DELETE", f"/api/v1/connections/{each}")


def api_10000_users_are_taken_up(served: Served) -> None:
    rows = "".join(f'[users.u{n}]\nallow = ["*:read:*", "*:write:orders/{n}"]\n' for n in range(10_000))
    with connected(served, 5_000):
        served.begin()
        served.take_users(rows)
        served.take_users(rows.replace("orders", "sales"))


def api_20000_users_with_10_rules_each_are_taken_up(served: Served) -> None:
    rules = ", ".join(f'"*:read:orders-{n}-*"' for n in range(10))
    rows = "".join(f"[users.u{n}]\nallow = [{rules}]\n" for n in range(20_000))
    served.begin()
    served.take_users(rows)
    served.take_users(rows.replace("orders", "sales"))


def api_50000_queues_are_scraped(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
        served.begin()
        for path in ("/metrics", "/metrics/detailed?family=queues"):
            served.ask("GET", path)


def api_settings_are_reloaded_beside_10000_connections(served: Served) -> None:
    with connected(served, 10_000):
        served.begin()
        served.reload_with("linger_seconds = 3\n[logmq]\nretention_bytes = 10000000\n")


def api_250_bridges_begin_carry_and_end(served: Served) -> None:
    bridges = "".join(
        f'[[bridge]]\nname = "b{n}"\nfrom = "logmq:topic-{n}"\nto = "logmq:other-{n}"\nstart = "first"\n'
        for n in range(250)
    )
    with topics(served, 250) as peer:
        served.begin()
        served.reload_with(bridges)
        peer.ask(to_each(250) * 100)
        path = "/api/v1/topics?match=other-*&limit=1000"
        until(lambda: len(served.ask("GET", path)["items"]) == 250)
        served.reload_with("")
