"""`brokers dmp ...`: the protocol's own commands. Each returns what it found; the host shows it."""

from typing import Annotated

from cyclopts import App, Parameter

from shared.plug import ServeRequest, VerbRequest

app = App(
    name="dmp",
    help="AMQP 0-9-1 exchanges and queues, and bulk messages over leased connections.",
    help_epilogue="""Examples:

    brokers dmp serve
    brokers dmp queues --json""",
    help_format="plaintext",
)

Json = Annotated[
    bool, Parameter(help="JSON, one object a line, instead of text.", negative="", show_default=False)
]


@app.command
def serve(
    *,
    port: Annotated[int | None, Parameter(help="Bind this port (5672 unless set); 0 picks one.")] = None,
) -> ServeRequest:
    """Serve AMQP 0-9-1 and DMP alone, until SIGTERM, SIGINT or the line "exit"."""
    return ServeRequest("dmp", {"dmp": {"port": port}})


@app.command
def queues(*, json: Json = False) -> VerbRequest:
    """Every queue of the running server: ready, unacknowledged, consumers."""
    return VerbRequest("dmp", "queues", {})


@app.command
def exchanges(*, json: Json = False) -> VerbRequest:
    """Every exchange of the running server, its type and bindings."""
    return VerbRequest("dmp", "exchanges", {})
