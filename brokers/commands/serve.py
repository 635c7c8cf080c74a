"""`brokers serve`: which protocols, by which settings. `serving` does what it says."""

from typing import Annotated

from cyclopts import Parameter

from brokers.commands.flags import Flag, ServeCommand, host_command, port_flags, with_host_flags
from shared.cli.options import flag


@host_command(
    "serve",
    "brokers serve",
    "brokers serve --enable logmq --port logmq=9000 --data-dir /srv/brokers",
    "brokers serve --record pubsub,kqmsgq",
    "brokers serve --config brokers.toml --ready-file /run/brokers.json",
    "BROKERS_LOGMQ_PORT=0 brokers serve --durability interval:50ms",
)
@with_host_flags
def serve(
    *,
    enable: Annotated[str | None, Parameter(help="Protocols to serve: all, or names with commas.")] = None,
    port: Annotated[
        tuple[str, ...],
        Parameter(
            help="Bind a protocol to this port; 0 picks one. Repeatable.", negative="", show_default=False
        ),
    ] = (),
    record: Annotated[
        str | None,
        Parameter(help="Protocols whose messages are written down as they pass: names with commas."),
    ] = None,
    restore_if_empty: Annotated[
        bool, flag("Make an empty data folder from the bucket first (ship.url).")
    ] = False,
) -> ServeCommand:
    """Serve protocols until told to stop.

    SIGTERM, SIGINT, or the line "exit" on standard input drain and end it, with
    exit code 0; a second SIGINT ends it at once. Settings come from flags, else
    BROKERS_<SECTION>_<KEY>, else the file, else defaults. The addresses that were
    bound are printed on standard error once all are ready.
    """
    chosen = [Flag(("serve", "enable"), enable, "--enable")] if enable is not None else []
    if record is not None:
        chosen.append(Flag(("record", "protocols"), record, "--record"))
    if restore_if_empty:
        chosen.append(Flag(("ship", "restore_if_empty"), "true", "--restore-if-empty"))
    return ServeCommand(flags=(*chosen, *port_flags(port)))
