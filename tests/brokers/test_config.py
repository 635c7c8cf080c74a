"""Flags over the environment over the file over defaults, and every mistake named."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from brokers.commands.flags import Flag
from brokers.errors import ExitCode, InvalidSettings
from brokers.plugins import load_working
from brokers.settings.config import Config, load
from shared.net.settings import TlsSettings
from shared.storage.settings import Durability
from tests.support.installed import plugin


@attrs.frozen
class TopicSettings:
    durability: Durability | None = None


@attrs.frozen
class QueueSettings:
    port: int = 9000
    line_bytes_max: int = 2**20
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"))
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    topics: Mapping[str, TopicSettings] = attrs.field(factory=dict)


PLUGINS = [plugin("queue", settings=QueueSettings, unrecorded=None), plugin("quiet")]


def read(
    tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None, flags: list[Flag] | None = None
) -> Config:
    file = tmp_path / "brokers.toml"
    file.write_text(toml)
    return load(PLUGINS, file=file, environ=environ or {}, flags=flags or [])


def refused(*arguments: Any, **keywords: Any) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as error:
        read(*arguments, **keywords)
    return error.value


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    toml = "[queue]\nport = 1\nline_bytes_max = 1\n[serve]\nhost = 'a'\nlog_level = 'debug'"
    environ = {"BROKERS_QUEUE_PORT": "2", "BROKERS_SERVE_HOST": "b", "BROKERS_QUEUE_TLS_KEY": "k.pem"}
    config = read(tmp_path, toml, environ, [Flag(("queue", "port"), "3", "--port")])
    queue = config.protocols["queue"]
    assert (queue.port, queue.line_bytes_max, queue.tls.key) == (3, 1, Path("k.pem"))
    assert (config.serve.host, config.serve.log_level, config.serve.log_format) == ("b", "debug", "text")
    sources = {shown.setting: shown.source for shown in config.shown(human=True)}
    assert sources["queue.port"] == "--port"
    assert sources["queue.line_bytes_max"] == str(tmp_path / "brokers.toml")
    assert sources["serve.host"] == "BROKERS_SERVE_HOST"
    assert sources["serve.log_format"] == "default"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("quiet", "record.protocols: quiet cannot be recorded: it has nothing that can be recorded"),
        ("queues", "record.protocols: no protocol 'queues' is installed; did you mean queue?"),
        ("queue, mail", "record.protocols: no protocol 'mail' is installed; there are queue"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path: Path, names: str, says: str) -> None:
    error = refused(tmp_path, environ={"BROKERS_RECORD_PROTOCOLS": names})
    assert str(error) == f"{says} (BROKERS_RECORD_PROTOCOLS)"
    assert error.code == ExitCode.CONFIGURATION


def test_what_is_recorded_and_how_long_is_said_like_any_setting(tmp_path: Path) -> None:
    toml = "[record]\nprotocols = ['queue']\nretention_bytes = '64MiB'\nretention_ms = '2d'"
    config = read(tmp_path, toml, {"BROKERS_SERVE_DURABILITY": "always"})
    assert config.record.protocols == ("queue",)
    assert (config.record.retention.bytes_kept, config.record.retention.ms_kept) == (64 << 20, 172_800_000)
    # Nobody waits for it: what holds for protocols does not hold for it.
    assert config.record.durability == Durability("interval", 0.05)
    assert "record.retention_bytes" in str(refused(tmp_path, "[record]\nretention_bytes = 0"))


def test_a_commands_own_defaults_give_way_to_everything_that_was_said(tmp_path: Path) -> None:
    own = [Flag(("queue", "port"), 1, "brokers queue serve"), Flag(("queue", "line_bytes_max"), 7, "")]
    file = tmp_path / "brokers.toml"
    file.write_text("[queue]\nline_bytes_max = 9")
    config = load(PLUGINS, file=file, environ={}, defaults=own)
    assert (config.protocols["queue"].port, config.protocols["queue"].line_bytes_max) == (1, 9)
    assert config.sources["queue", "port"] == "brokers queue serve"
    said = load(PLUGINS, file=file, environ={"BROKERS_QUEUE_PORT": "2"}, defaults=own)
    assert said.protocols["queue"].port == 2


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[queue]\nport = 5")
    config = load(PLUGINS, file=None, environ={"BROKERS_CONFIG": str(file)})
    assert config.protocols["queue"].port == 5


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[queue\nport = 1", "is not TOML: "),
        (f"[queue]\nport = {'9' * 5000}", "is not TOML: "),
        (f"a = {'[' * 5000}", "is not TOML: "),
        (f"[queue]\nport{'.a' * 5000} = 1", "queue.port: "),
        ("[queue]\ndurability = 'x'", "queue.durability: "),
        ("[serve]\ndrain_seconds = -1", "serve.drain_seconds: must be >= 0"),
        ("[net]\nlinger_seconds = inf", "net.linger_seconds: expected a number, got inf"),
        (f"[net]\nlinger_seconds = 1{'0' * 400}", "net.linger_seconds: expected a number, got 1000"),
        ("[serve]\ndrain_seconds = 3601", "serve.drain_seconds: must be <= 3600"),
        ('[serve]\nhost = "a\\u0000b"', "serve.host: name an address"),
        ("[serve]\nhost = '[::1'", "serve.host: '[::1' is no address"),
        ("[serve]\nhost = '127.0.0.1:80'", "ports are the protocols' own settings"),
        ("[serve]\nenable = []", "serve.enable: name at least one protocol"),
        ("\udc80", "is not UTF-8"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, toml: str, says: str) -> None:
    file = tmp_path / "b.toml"
    file.write_bytes(toml.encode(errors="surrogateescape"))
    with pytest.raises(InvalidSettings) as error:
        load(PLUGINS, file=file, environ={})
    assert says in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.code == ExitCode.CONFIGURATION


def test_a_pipe_can_be_read_but_once(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"[queue]\nport = 5")
    os.close(writer)
    file = Path(f"/dev/fd/{reader}")
    try:
        assert load(PLUGINS, file=file, environ={}).protocols["queue"].port == 5
        with pytest.raises(InvalidSettings, match="is a pipe"):
            load(PLUGINS, file=file, environ={})
    finally:
        os.close(reader)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"nowhere.toml: cannot be read: No such file"):
        load(PLUGINS, file=tmp_path / "nowhere.toml", environ={})


def test_an_unknown_variable_names_the_nearest(tmp_path: Path) -> None:
    error = refused(tmp_path, environ={"BROKERS_QUEUE_PROT": "1"})
    assert str(error) == "BROKERS_QUEUE_PROT: unknown variable; did you mean BROKERS_QUEUE_PORT?"


def test_what_is_said_to_a_broken_protocol_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[bad]\nport = 1\n[queue]\nport = 2")
    environ = {"BROKERS_BAD_PORT": "3"}
    config = load(PLUGINS, file=file, environ=environ, broken=["bad"])
    assert config.protocols["queue"].port == 2
    recorded = [Flag(("record", "protocols"), "bad,queue", "--record")]
    assert load(PLUGINS, file=None, environ={}, flags=recorded, broken=["bad"]).record.protocols
    with pytest.raises(InvalidSettings, match="BROKERS_QUEUE_PROT: unknown variable"):
        load(PLUGINS, file=None, environ={"BROKERS_QUEUE_PROT": "3"}, broken=["que"])


def test_variables_that_kubernetes_sets_for_a_service_called_brokers_are_not_ours(tmp_path: Path) -> None:
    read(
        tmp_path,
        environ={
            "BROKERS_SERVICE_HOST": "10.0.0.1",
            "BROKERS_SERVICE_PORT_LOGMQ": "8080",
            "BROKERS_PORT": "tcp://10.0.0.1:8080",
            "BROKERS_PORT_8080_TCP_ADDR": "10.0.0.1",
        },
    )


def test_a_variable_of_a_protocols_commands_is_no_mistake_where_it_is_served() -> None:
    plugins = [plugin("queue", settings=QueueSettings, command_variables=("user",))]
    assert load(plugins, file=None, environ={"BROKERS_QUEUE_USER": "ann"}).sources == {}
    with pytest.raises(InvalidSettings, match="BROKERS_QUEUE_USERS: unknown variable"):
        load(plugins, file=None, environ={"BROKERS_QUEUE_USERS": "ann"})


def test_a_mistake_in_flags_alone_is_one_of_usage(tmp_path: Path) -> None:
    bad = Flag(("queue", "port"), "x", "--port")
    assert refused(tmp_path, flags=[bad]).code == ExitCode.USAGE
    assert refused(tmp_path, "[queue]\nprot = 1", flags=[bad]).code == ExitCode.CONFIGURATION


def test_a_flag_for_a_protocol_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    error = refused(tmp_path, flags=[Flag(("queu", "port"), "1", "--port")])
    assert str(error) == "queu.port: no such setting; did you mean queue? (--port)"


def test_one_durability_stands_for_every_protocol_that_has_none_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, "[serve]\ndurability = 'none'")
    assert str(config.protocols["queue"].durability) == "none"
    config = read(tmp_path, "[serve]\ndurability = 'none'\n[queue]\ndurability = 'always'")
    assert str(config.protocols["queue"].durability) == "always"


def test_the_durability_flag_wins_over_a_protocols_own_but_not_over_a_topics(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "[queue]\ndurability = 'always'\n[queue.topics.'x.*']\ndurability = 'always'",
        flags=[Flag(("serve", "durability"), "none", "--durability")],
    )
    queue = config.protocols["queue"]
    assert str(queue.durability) == "none"
    assert str(queue.topics["x.*"].durability) == "always"
    assert "serve.durability, --durability" in {shown.source for shown in config.shown(human=True)}


def test_a_protocol_speaks_the_tls_of_all_where_it_has_none_of_its_own(tmp_path: Path) -> None:
    common = "[tls]\ncertificate = 'all.pem'\nkey = 'all.key'\n"
    config = read(tmp_path, common)
    assert config.tls_of("queue") == ("tls", config.tls)
    assert config.tls_of("quiet") == ("tls", config.tls)
    config = read(tmp_path, common + "[queue.tls]\ncertificate = 'own.pem'\nkey = 'own.key'")
    assert config.tls_of("queue") == ("queue.tls", config.protocols["queue"].tls)
    assert config.tls_of("quiet") == ("tls", config.tls)


def test_tables_of_tables_keep_the_order_of_the_file(tmp_path: Path) -> None:
    names = ["z", "a", "m.*"]
    toml = "".join(f"[queue.topics.'{name}']\ndurability = 'none'\n" for name in names)
    assert list(read(tmp_path, toml).protocols["queue"].topics) == names


def test_settings_are_shown_with_units_to_people_and_without_to_machines(tmp_path: Path) -> None:
    config = read(tmp_path)
    human = {shown.setting: shown.value for shown in config.shown(human=True)}
    machine = {shown.setting: shown.value for shown in config.shown(human=False)}
    assert (human["queue.line_bytes_max"], machine["queue.line_bytes_max"]) == ("1MiB", 2**20)
    assert (human["serve.drain_seconds"], machine["serve.drain_seconds"]) == ("10s", 10.0)
    assert machine["serve.enable"] == ["all"]
    assert machine["serve.data_dir"] == "data"


def test_relative_paths_of_a_file_go_out_from_its_folder_and_all_others_from_the_current_one(
    tmp_path: Path,
) -> None:
    tables = ("[serve]\ndata_dir = 'data'", "[tls]\ncertificate = 'a.pem'\nclient_ca = '/etc/ca.pem'")
    toml = "\n".join((*tables, "[queue.tls]\nkey = '../k'"))
    config = read(tmp_path, toml, {"BROKERS_TLS_KEY": "k.pem"})
    assert config.serve.data_dir == tmp_path / "data"
    tls = TlsSettings(tmp_path / "a.pem", Path("k.pem"), Path("/etc/ca.pem"))
    assert (config.tls, config.protocols["queue"].tls.key) == (tls, tmp_path / "../k")
    flag = Flag(("serve", "data_dir"), "data", "--data-dir")
    assert read(tmp_path, toml, flags=[flag]).serve.data_dir == Path("data")
    assert load([], file=None, environ={}).serve.data_dir == Path("data")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (
            "[logmq]\nlocal_retention_ms = '1d'",
            "logmq.local_retention_ms: ship.url names no bucket, which would have the rest",
        ),
        (
            '[logmq.topics."a.*"]\nlocal_retention_bytes = "1GiB"',
            'logmq.topics."a.*".local_retention_bytes: ship.url names no bucket, which would have the rest',
        ),
        (
            "[logmq]\nlocal_retention_bytes = 1\n[ship]\nurl = 'file:///b'\nfencing = 'none'",
            'logmq.local_retention_bytes: ship.fencing is "none"',
        ),
    ],
)
def test_nothing_is_left_to_a_bucket_that_is_not_there(tmp_path: Path, toml: str, says: str) -> None:
    def loaded(text: str) -> None:
        file = tmp_path / "brokers.toml"
        file.write_text(text)
        load(load_working()[0], file=file, environ={})

    with pytest.raises(InvalidSettings) as caught:
        loaded(toml)
    assert str(caught.value).startswith(says)
    assert caught.value.code == ExitCode.CONFIGURATION
    loaded(toml.partition("[ship]")[0] + "\n[ship]\nurl = 'file:///b'")
