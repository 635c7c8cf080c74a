"""What `serve` commands are given beside their own flags."""

from pathlib import Path

import pytest

from brokers.commands.cli import root
from brokers.commands.flags import Flag, ServeCommand, port_flags
from brokers.errors import InvalidSettings
from brokers.plugins import load_all
from brokers.settings.config import load


def test_a_protocol_that_can_be_recorded_is_when_its_serve_is_told_so() -> None:
    plugins = load_all()[0]
    assert {plugin.name for plugin in plugins if plugin.unrecorded is None} == {"kqmsgq", "pubsub", "dmp"}
    for plugin in plugins:
        words = [plugin.name, "serve", "--record"]
        if plugin.unrecorded is not None:
            with pytest.raises(Exception, match="--record"):
                root(words).parse_args(words, print_error=False, exit_on_error=False)
            continue
        for given, recorded in ((words, (plugin.name,)), (words[:2], ())):
            command, bound, _ = root(given).parse_args(given, print_error=False, exit_on_error=False)
            result = command(*bound.args, **bound.kwargs)
            assert isinstance(result, ServeCommand)
            config = load(plugins, file=None, environ={}, flags=result.flags)
            assert (config.serve.enable, config.record.protocols) == ((plugin.name,), recorded)


def test_a_port_is_said_with_its_protocol() -> None:
    assert list(port_flags(["logmq=0"])) == [Flag(("logmq", "port"), "0", "--port")]
    for wrong in ("logmq", "logmq=", "=8080", ""):
        with pytest.raises(InvalidSettings, match="is not PROTOCOL=PORT"):
            list(port_flags([wrong]))


def test_a_protocols_own_serve_says_what_was_said_and_nothing_else() -> None:
    words = ["logmq", "serve", "--port", "0", "--insecure", "--ready-file", "r", "--data-dir", "d"]
    command, bound, _ = root(words).parse_args(words, print_error=False, exit_on_error=False)
    result = command(*bound.args, **bound.kwargs)
    assert isinstance(result, ServeCommand)
    assert result.ready_file == Path("r")
    config = load(load_all()[0], file=None, environ={"BROKERS_LOGMQ_PORT": "7"}, flags=result.flags)
    assert (config.protocols["logmq"].port, config.serve.insecure) == (0, True)
    assert config.serve.data_dir == Path("d")
    assert config.serve.host == "127.0.0.1"
