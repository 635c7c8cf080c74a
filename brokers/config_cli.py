"""`brokers config ...`: settings are checked, shown and explained."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.flags import ConfigFile, host_app
from shared.cli.options import Json

app, command = host_app(
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
