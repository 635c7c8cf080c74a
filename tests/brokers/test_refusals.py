"""Starts that are refused: one clear line, the exit code, no traceback, and nothing left behind."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers import plugins
from brokers.commands.flags import Flag
from brokers.errors import ExitCode, Failure, exit_code, folder_errors
from brokers.settings.config import load
from shared.client.dial import Disconnected, Unreachable
from shared.errors import BrokerError
from shared.storage.lock import FolderLock
from tests.brokers.conftest import Run
from tests.support.echo import install_echo
from tests.support.installed import look_again
from tests.support.server import Server, speak


def refused(command: Run, folder: Path, code: int, *words: str) -> str:
    """The one line with which `brokers serve` ends on this data folder."""
    got, out, said = command("serve", "--data-dir", str(folder / "data"), *words)
    assert got == code, said
    assert out == ""
    assert said.startswith("brokers: "), said
    assert said.count("\n") == 1, said
    return said


@pytest.mark.usefixtures("small_journal")
def test_a_taken_port_is_named_and_leaves_the_folder_free(command: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(command, tmp_path, ExitCode.CONFIGURATION, "--port", f"logmq={port}")
    assert f"logmq: cannot listen on 127.0.0.1:{port}: Address already in use" in line
    FolderLock.take(tmp_path / "data").release()  # and the folder is free again
    assert not (tmp_path / "data" / "control.sock").exists()


def test_an_address_that_is_not_ours_is_named(command: Run, tmp_path: Path) -> None:
    line = refused(command, tmp_path, ExitCode.CONFIGURATION, "--host", "192.0.2.1", "--insecure")
    assert "192.0.2.1" in line


def test_an_address_that_others_reach_asks_for_tls_or_insecure(command: Run, tmp_path: Path) -> None:
    line = refused(command, tmp_path, ExitCode.CONFIGURATION, "--host", "0.0.0.0", "--enable", "logmq")
    assert "serve.host: 0.0.0.0 can be reached from other machines" in line
    assert "--insecure" in line


@pytest.mark.parametrize("name", ["follow", "restore_if_empty"])
def test_what_needs_a_bucket_is_refused_without_one(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"BROKERS_SHIP_{name.upper()}", "true")
    line = refused(command, tmp_path, ExitCode.CONFIGURATION)
    assert f"ship.{name} needs ship.url" in line


def test_a_folder_in_use_names_the_process_and_does_not_disturb_it(
    command: Run, shared_server: Server
) -> None:
    line = refused(command, shared_server.folder, ExitCode.DATA_FOLDER)
    assert f"in use by process {shared_server.pid}" in line
    assert speak(shared_server.address("logmq"), b"PING\n") == b"PONG\n"


def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_is(command: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert f"data folder {tmp_path}/data: Not a directory" in refused(command, tmp_path, ExitCode.DATA_FOLDER)
    assert (tmp_path / "data").read_text() == "a file"


def test_a_file_of_it_that_cannot_be_written_is_named_whole(command: Run, tmp_path: Path) -> None:
    (tmp_path / "data" / "LOCK").mkdir(parents=True)
    assert f"data folder {tmp_path}/data/LOCK: " in refused(command, tmp_path, ExitCode.DATA_FOLDER)


@pytest.mark.usefixtures("small_journal")
def test_a_file_in_the_place_of_a_protocols_folder_is_named_whole(command: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "logmq").write_text("a file")
    line = refused(command, tmp_path, ExitCode.DATA_FOLDER)
    assert f"data folder {tmp_path}/data/logmq: Not a directory" in line


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EIO, r"Input/output error: the disk fails; copy .* brokers fsck --repair"),
        (errno.ENOSPC, r"No space left on device: free some .* try again; nothing .* is lost"),
        (errno.EDQUOT, r"quota exceeded: raise the quota, .* nothing .* is lost"),
        (errno.EROFS, r"Read-only file system: make the file system writable"),
        (errno.EACCES, r"Permission denied: it must belong to the user who runs this"),
        (errno.EMFILE, r"Too many open files: raise the limit of open files with ulimit -n"),
        (errno.EFBIG, r"File too large: .* ulimit -f"),
    ],
)
def test_a_disk_that_refuses_says_what_to_do(tmp_path: Path, code: int, text: str) -> None:
    with pytest.raises(Failure, match=f"CATALOG: .*{text}") as refused, folder_errors(tmp_path):
        raise OSError(code, os.strerror(code), "CATALOG")
    assert refused.value.code == ExitCode.DATA_FOLDER


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_is_refused(command: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in refused(command, tmp_path, ExitCode.DATA_FOLDER)


def test_a_folder_of_a_newer_version_is_refused_and_left_as_it_is(command: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "FORMAT").write_text("brokers data folder, format 2\n")
    line = refused(command, tmp_path, ExitCode.DATA_FOLDER)
    assert line.startswith(f"brokers: {tmp_path}/data: ")
    assert "newer" in line
    assert (tmp_path / "data" / "FORMAT").read_text() == "brokers data folder, format 2\n"


def test_a_settings_file_that_is_not_there_is_named_before_a_folder_is_made(
    command: Run, tmp_path: Path
) -> None:
    line = refused(command, tmp_path, ExitCode.CONFIGURATION, "--config", str(tmp_path / "nowhere"))
    assert "nowhere: cannot be read: No such file or directory" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[logmq]\nprot = 1", "logmq.prot: unknown key; did you mean logmq.port?"),
        ("[logmq", "is not TOML"),
        ("[storage]\nsegment_bytes = '1 furlong'", "storage.segment_bytes: "),
        ("[serve]\nenable = ['lgomq']", "did you mean logmq?"),
        ("[tls]\nkey = '{file}'", "tls.certificate: TLS needs a certificate"),
        ("[tls]\ncertificate = '/nowhere.pem'", "tls.certificate: cannot read /nowhere.pem"),
        ("[tls]\ncertificate = '{file}'", "tls.certificate: {file} does not hold a certificate and its key"),
        ("[logmq.tls]\ncertificate = '/nowhere.pem'", "logmq.tls.certificate: cannot read /nowhere.pem"),
        (
            "[serve]\nenable = ['dms']\nhost = '0.0.0.0'",
            "serve.host: 0.0.0.0 can be reached from other machines",
        ),
        ("[serve]\nenable = ['dms']\nhost = '[::]'", "serve.host: :: can be reached from other machines"),
        ("[serve]\nhost = '127.0.0.1:80'", "serve.host: '127.0.0.1:80' is no address"),
        ('[serve]\nhost = "\\u0000"', "serve.host: name an address"),
        ("[serve]\nhost = '0.0.0.0'\ninsecure = true", "pubsub.allow: 0.0.0.0 can be reached"),
        ("[pubsub]\nallow = ['300.0.0.0/8']", "pubsub.allow: '300.0.0.0/8' does not appear to be"),
        ("[serve]\ndefinitions = 'nowhere.json'", "nowhere.json: No such file or directory"),
        ("[serve]\ndefinitions = '{file}'", "serve.definitions: {file}: no JSON: "),
        ("[serve]\nenable = ['nosuch']", "serve.enable: no protocol 'nosuch' is installed"),
        (f"[serve]\ndrain_seconds = '{400 * '9'}.5s'", "is too large"),
        (f"[access]\nusers_file = '{300 * 'u'}'", "access.users_file: cannot read"),
    ],
)
def test_a_check_of_the_settings_says_what_serving_would(
    command: Run, tmp_path: Path, toml: str, says: str
) -> None:
    file = tmp_path / "b.toml"
    file.write_text(toml.format(file=file))
    words = ("--config", str(file))
    line = refused(command, tmp_path, ExitCode.CONFIGURATION, *words)
    assert says.format(file=file) in line
    assert command("config", "check", *words) == (ExitCode.CONFIGURATION, "", line)


def test_a_ready_file_that_cannot_be_written_is_a_mistake_on_the_command_line(
    command: Run, tmp_path: Path
) -> None:
    line = refused(command, tmp_path, ExitCode.USAGE, "--ready-file", str(tmp_path / "nowhere" / "r"))
    assert "No such file or directory" in line


def test_a_ready_file_takes_the_place_of_no_pipe_device_or_link(command: Run, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "b")
    for path in (pipe, link):
        line = refused(command, tmp_path, ExitCode.USAGE, "--ready-file", str(path))
        assert line == f"brokers: --ready-file {path}: Not a regular file\n"
    assert pipe.is_fifo()
    assert link.is_symlink()


def _as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "Not a regular file"),
        (os.mkdir, "Is a directory"),
        (_as_socket, "Not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "Not a regular file"),
    ],
)
@pytest.mark.usefixtures("small_journal")
def test_what_a_start_reads_is_a_file_and_all_else_is_named(
    command: Run, tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    """Whoever opened a pipe waited for ever, and OpenSSL looked for the end of a device's line."""
    data = tmp_path / "data"
    data.mkdir()
    odd, settings = tmp_path / "odd", tmp_path / "b.toml"
    make(odd)
    certificates = "tls.certificate", "tls.client_ca", "admin.tls.key"
    for key in ("access.users_file", "serve.definitions", *certificates):
        section, _, name = key.rpartition(".")
        certificate = "" if name == "certificate" else f"certificate = '{__file__}'\n"
        settings.write_text(f"[{section}]\n{certificate if 'tls' in section else ''}{name} = '{odd}'")
        words = ("--config", str(settings))
        line = refused(command, tmp_path, ExitCode.CONFIGURATION, *words)
        assert f"{key}: cannot read {odd}: {says}" in line
        assert command("config", "check", *words) == (ExitCode.CONFIGURATION, "", line)
    for name, code in (("users.toml", ExitCode.CONFIGURATION), ("admin.token", ExitCode.DATA_FOLDER)):
        odd.rename(data / name)
        assert f"{data / name}: {says}" in refused(command, tmp_path, code)
        (data / name).rename(odd)
    (data / "admin.token").write_bytes(b"\xff")
    assert f"{data}/admin.token: Not text; remove it" in refused(command, tmp_path, ExitCode.DATA_FOLDER)


def test_a_users_file_that_cannot_be_looked_at_is_not_said_to_be_missing(
    command: Run, tmp_path: Path
) -> None:
    settings = tmp_path / "b.toml"
    for name, says in (("none", "is not there"), ("u" * 300, "File name too long")):
        settings.write_text(f"[access]\nrequired = 'always'\nusers_file = '{tmp_path / name}'\n")
        words = ("--config", str(settings), "--enable", "logmq")
        line = refused(command, tmp_path, ExitCode.CONFIGURATION, *words)
        assert "nobody could log in" in line
        assert says in line


def test_a_protocol_s_own_certificate_is_checked_as_that_of_all(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_echo(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    look_again(monkeypatch)
    monkeypatch.setenv("BROKERS_ECHO_TLS_CERTIFICATE", "/nowhere.pem")
    line = refused(command, tmp_path, ExitCode.CONFIGURATION, "--enable", "echo")
    assert "echo.tls.certificate: cannot read /nowhere.pem" in line


def test_an_error_may_say_how_the_command_ends_that_it_ended() -> None:
    class NothingCame(BrokerError):
        exit_code = ExitCode.TEMPORARY

    assert exit_code(NothingCame()) == 75
    assert exit_code(BrokerError()) == ExitCode.FAILED
    assert exit_code(Disconnected("gone")) == ExitCode.LOST
    assert exit_code(Unreachable("never there")) == ExitCode.UNAVAILABLE


def test_a_check_of_the_settings_says_everything_at_once(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        "[serve]\nhost = '0.0.0.0'\nenable = ['nosuch', 'neither', 'logmq', 'dms', 'pubsub']\n"
        "[logmq]\nprot = 1\nport = 0\n[dms]\nport = 0\ndepth = 0\n[pubsub]\nport = 0\n"
        "[tls]\ncertificate = 'a.pem'\nkey = 'b.pem'\n[dms.tls]\nclient_ca = 'c.pem'\n"
    )
    code, shown, said = command("config", "check", "--config", str(file))
    assert (code, shown) == (ExitCode.CONFIGURATION, "")
    assert [line.removeprefix("brokers: ").partition(": ")[0].strip() for line in said.splitlines()] == [
        "logmq.prot",
        "dms.depth",
        "serve.enable",
        "serve.enable",
        "dms.tls.client_ca",
        "dms.tls.certificate",
        "tls.certificate",
        "tls.key",
        "serve.host",
        "pubsub.allow",
    ], said


@pytest.mark.parametrize("setting", ["logmq.port", "pubsub.syslog_port"])
def test_two_listeners_on_one_port_are_a_mistake(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("BROKERS_DMS_PORT", "8081")
    monkeypatch.setenv(f"BROKERS_{setting.upper().replace('.', '_')}", "8081")
    line = refused(command, tmp_path, ExitCode.CONFIGURATION)
    assert line == f"brokers: {setting}: 8081 is dms.port, too: each needs one of its own\n"
    assert command("config", "check") == (ExitCode.CONFIGURATION, "", line)


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("logmq", socket.SOCK_STREAM),
        ("pubsub", socket.SOCK_STREAM),
        ("pubsub", socket.SOCK_DGRAM),
    ],
)
def test_a_check_names_a_port_that_is_taken(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, kind: socket.SocketKind
) -> None:
    monkeypatch.delenv(f"BROKERS_{protocol.upper()}_PORT")
    file = tmp_path / "b.toml"
    host = "127.83.17.5"  # used by nobody else: the port must be free again at the end
    with socket.socket(type=kind) as taken:
        taken.bind((host, 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"[serve]\nhost = '{host}'\nenable = ['{protocol}']\n[{protocol}]\nport = {port}\n")
        code, _, said = command("config", "check", "--config", str(file))
    assert code == ExitCode.CONFIGURATION
    assert said == f"brokers: {protocol}.port: cannot listen on {host}:{port}: Address already in use\n"
    assert command("config", "check", "--config", str(file))[0] == ExitCode.OK


def test_what_the_server_of_the_folder_has_itself_is_not_taken(
    command: Run, tmp_path: Path, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKERS_LOGMQ_PORT")
    _, port = shared_server.address("logmq")
    text = f"[serve]\nenable = ['logmq']\ndata_dir = '{{folder}}'\n[logmq]\nport = {port}\n"
    file = tmp_path / "b.toml"
    file.write_text(text.format(folder=shared_server.data))
    assert command("config", "check", "--config", str(file))[0] == ExitCode.OK
    file.write_text(text.format(folder=tmp_path))
    assert command("config", "check", "--config", str(file))[0] == ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    "given",
    [
        "['ann:hunter2', 'bob:hunter2']",
        "{ann = 'hunter2'}",
        "'hunter2'",
        "'ann:hunter2, ann:hunter2'",
        "'ann:hunter2",
    ],
)
@pytest.mark.parametrize("words", [("serve",), ("config", "check"), ("config", "show")])
def test_no_error_about_a_secret_repeats_it(
    command: Run, tmp_path: Path, words: tuple[str, ...], given: str
) -> None:
    file = tmp_path / "b.toml"
    file.write_text(f"[dmp]\nusers = {given}\n")
    code, shown, said = command(*words, "--config", str(file))
    assert (code, shown) == (ExitCode.CONFIGURATION, "")
    assert "dmp.users: " in said or "is not TOML" in said
    assert "hunter2" not in said


def test_a_secret_is_shown_nowhere(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[dmp]\nusers = 'ann:hunter2'\n")
    for words in (("show",), ("show", "--json"), ("check",)):
        code, shown, said = command("config", *words, "--config", str(file))
        assert (code, "hunter2" in shown + said) == (ExitCode.OK, False)
    config = load(plugins.load_all()[0], file=file, environ={})
    assert "hunter2" not in repr(config) + repr(config.protocols["dmp"].users)
    assert "hunter2" not in repr(Flag(("dmp", "users"), "ann:hunter2", "--users"))
