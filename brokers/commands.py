"""The host's own verbs. Each returns what it found, and `cli` shows it.

A verb imports what it needs when it runs, so that no command pays for another's libraries.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from brokers import folder_cli, server_cli
from brokers.flags import ConfigFile, Flag, ServeCommand, port_flags, with_host_flags, with_table_flags
from shared.cli.app import examples
from shared.cli.options import Json

OBJECT_KINDS = (
    "connections",
    "queues",
    "topics",
    "groups",
    "sessions",
    "subscriptions",
    "exchanges",
    "bindings",
)
"""Kinds that have a command which lists them (`shared.objects`, which a `--help` does not import)."""
PIPELINE_HELP = "Logs as data: Spark jobs over what passed through (needs the extra spark)."
CONTEXT_HELP = "Servers by name, for the commands that ask a running one."
DEFINITIONS_HELP = "Users, topics, exchanges, queues, bindings and groups of a server, as a file."
USER_HELP = "Users: who may log in, and what each may do."
REPLAY_HELP = "Send messages of the past again: recorded traffic, a log, or an archive."
BRIDGE_HELP = "Bridges: messages that came in by one protocol go out by another."
BENCH_HELP = "Measure this machine: the network layer, or a protocol's server."


def add_commands(app: App, root: Callable[[], App]) -> None:
    """Put the host's verbs into `app`; `root` makes the whole tree, for completion scripts."""
    app.command(
        with_host_flags(serve),
        help_epilogue=examples(
            "brokers",
            "brokers serve",
            "brokers serve --enable logmq --port logmq=9000 --data-dir /srv/brokers",
            "brokers serve --record pubsub,kqmsgq",
            "brokers serve --config brokers.toml --ready-file /run/brokers.json",
            "BROKERS_LOGMQ_PORT=0 brokers serve --durability interval:50ms",
        ),
    )
    app.command(_config_app())
    server_cli.add_commands(app)
    for kind in OBJECT_KINDS:
        app.command(f"brokers.object_cli:{kind}", name=kind, help=f"List the {kind}.")
    app.command("brokers.top:app", name="top", help="Show what is busy now, until q.")
    app.command("brokers.follow_cli:logs", name="logs", help="Show the running server's log.")
    app.command("brokers.follow_cli:trace", name="trace", help="Show copies of messages that pass a name.")
    app.command("brokers.object_cli:kick", name="kick", help="Close connections.")
    folder_cli.add_commands(app)
    app.command("brokers.context_cli:app", name="context", help=CONTEXT_HELP)
    app.command("brokers.definitions_cli:app", name="definitions", help=DEFINITIONS_HELP)
    app.command("brokers.user_cli:app", name="user", help=USER_HELP)
    app.command("brokers.replaying.cli:app", name="replay", help=REPLAY_HELP)
    app.command("brokers.bench.cli:app", name="bench", help=BENCH_HELP)
    app.command("brokers.bridges.cli:app", name="bridge", help=BRIDGE_HELP)
    app.command("brokers.pipeline.cli:app", name="pipeline", help=PIPELINE_HELP)
    app.command(
        completion(root),
        name="completion",
        help_epilogue=examples(
            "brokers",
            "source <(brokers completion bash)",
            "brokers completion zsh > ~/.zsh/completions/_brokers",
            "brokers completion fish > ~/.config/fish/completions/brokers.fish",
        ),
    )


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
    return ServeCommand(flags=(*chosen, *port_flags(port)))


def _config_app() -> App:
    app = App(
        name="config",
        help="Check settings, show them, or say what they are for.",
        help_epilogue="Examples:\n\n    brokers config show\n    brokers config check --config brokers.toml\n"
        "    brokers config explain net.driver",
        help_format="plaintext",
    )

    @app.command(help_epilogue="Examples:\n\n    brokers config check --config brokers.toml")
    def check(*, config: ConfigFile = None) -> str:
        """Read the settings as serving would, and say all that is wrong with them (exit 78).

        Certificates, addresses and ports are tried; those that the server of the
        data folder has itself are free to it.
        """
        from brokers.checking import checked

        settings = checked(config)
        return f"{len(settings.shown(human=True))} settings are in order"

    @app.command(
        help_epilogue="Examples:\n\n    brokers config show --config brokers.toml\n"
        "    brokers config show --json | jq 'select(.source != \"default\")'"
    )
    @with_table_flags
    def show(*, config: ConfigFile = None, json: Json = False) -> Sequence[Any]:
        """List the settings: each with its value, and where that comes from."""
        from brokers.config import as_served

        settings = as_served(config)
        return settings.shown(human=not json)

    @app.command(
        help_epilogue="Examples:\n\n    brokers config explain\n    brokers config explain net dms.queues\n"
        "    brokers config explain --json | jq -r .setting"
    )
    def explain(
        *settings: Annotated[str, Parameter(help="A setting or a section; without any, all.")],
        json: Json = False,
    ) -> Any:
        """Say what settings are for, with their defaults and what they take."""
        from brokers.config import OWN_SECTIONS
        from brokers.explaining import chosen, explained
        from brokers.plugins import load_working

        protocols = {plugin.name: plugin.settings for plugin in load_working()[0]}
        rows = chosen(explained({**OWN_SECTIONS, **protocols}), settings)
        return rows if json else "\n\n".join(map(str, rows))

    return app


def completion(root: Callable[[], App]) -> Callable[..., str]:
    def completion(shell: Literal["bash", "zsh", "fish"]) -> str:
        """Print a completion script for a shell.

        Parameters
        ----------
        shell
            The shell that is to complete.
        """
        return root().generate_completion(prog_name="brokers", shell=shell)

    return completion
