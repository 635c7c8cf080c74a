"""The host's own verbs. Each returns what it found, and `cli` shows it.

A verb imports what it needs when it runs, so that no command pays for another's libraries.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from brokers import folder_cli, server_cli
from brokers.flags import ConfigFile, Flag, ServeCommand, port_flags, with_host_flags, with_table_flags
from brokers.plugins import OBJECT_KINDS
from shared.cli.app import examples, protocol_app
from shared.cli.options import Json

IMPORTED: Mapping[str, tuple[str, str]] = {
    **{kind: (f"object_cli:{kind}", f"List the {kind}.") for kind in OBJECT_KINDS},
    "top": ("top:top", "Show what is busy now, until q."),
    "logs": ("follow_cli:logs", "Show the running server's log."),
    "trace": ("follow_cli:trace", "Show copies of messages that pass a name."),
    "kick": ("object_cli:kick", "Close connections."),
    "context": ("context_cli:app", "Servers by name, for the commands that ask a running one."),
    "definitions": (
        "definitions_cli:app",
        "Users, topics, exchanges, queues, bindings and groups of a server, as a file.",
    ),
    "user": ("user_cli:app", "Users: who may log in, and what each may do."),
    "replay": (
        "replaying.cli:replay",
        "Send messages of the past again: recorded traffic, a log, or an archive.",
    ),
    "bench": ("bench.cli:app", "Measure this machine: the network layer, or a protocol's server."),
    "bridge": ("bridges.cli:app", "Bridges: messages that came in by one protocol go out by another."),
    "pipeline": (
        "pipeline.cli:app",
        "Logs as data: Spark jobs over what passed through (needs the extra spark).",
    ),
}
"""Commands that are imported when they are called: where each is, and its line in the list of all."""


def add_commands(app: App, root: Callable[[], App], called: str) -> None:
    """Put the host's verbs into `app`; `root` makes the whole tree, for completion scripts. The one that is
    `called` shows its own help.
    """
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
    for each in server_cli.COMMANDS:
        app.command(each)
    folder_cli.add_commands(app)
    for name, (where, text) in IMPORTED.items():
        app.command(f"brokers.{where}", name=name, help=None if name == called else text)
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
    app, command = protocol_app(
        "config",
        "Check settings, show them, or say what they are for.",
        "show",
        "check --config brokers.toml",
        "explain net.driver",
    )

    @command("check --config brokers.toml")
    def check(*, config: ConfigFile = None) -> str:
        """Read the settings as serving would, and say all that is wrong with them (exit 78).

        Certificates, addresses and ports are tried; those that the server of the
        data folder has itself are free to it.
        """
        from brokers.checking import checked

        settings = checked(config)
        return f"{len(settings.shown(human=True))} settings are in order"

    @command("show --config brokers.toml", "show --json | jq 'select(.source != \"default\")'")
    @with_table_flags
    def show(*, config: ConfigFile = None, json: Json = False) -> Sequence[Any]:
        """List the settings: each with its value, and where that comes from."""
        from brokers.config import as_served

        return as_served(config).shown(human=not json)

    @command("explain", "explain net dms.queues", "explain --json | jq -r .setting")
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
