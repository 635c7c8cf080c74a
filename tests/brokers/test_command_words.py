"""What commands say where something is wrong, and what they show first."""

import shlex
from pathlib import Path

import pytest

from brokers.errors import ExitCode
from tests.brokers.conftest import Run
from tests.support.folders import fill, flip
from tests.support.server import Server, speak

SPEAKING = (
    ("dms", "list"),
    ("logmq", "topics"),
    ("kqmsgq", "produce", "news", "x"),
    ("kqmsgq", "consume", "news"),
    ("dmp", "get", "mine"),
)


@pytest.mark.parametrize("words", SPEAKING)
def test_a_server_that_is_not_there_is_told_without_a_tuple_of_python(
    words: tuple[str, ...], command: Run
) -> None:
    code, _, said = command(*words, "--port", "1")
    assert code == ExitCode.UNAVAILABLE
    assert said.startswith("brokers: 127.0.0.1:1: no ")
    assert said.endswith(" server answers (Connection refused)\n")


@pytest.mark.parametrize("words", SPEAKING)
def test_a_mistake_with_tls_has_one_exit_code_for_all(
    words: tuple[str, ...], command: Run, shared_server: Server
) -> None:
    port = str(shared_server.address(words[0])[1])
    assert command(*words, "--port", port, "--tls")[0] == ExitCode.UNAVAILABLE
    page = shared_server.ready["page"].replace("http:", "https:")
    assert command("status", "--url", page)[0] == ExitCode.UNAVAILABLE


def test_a_port_in_the_host_is_told_with_the_flag_for_it(command: Run) -> None:
    code, _, said = command("dms", "list", "--host", "127.0.0.1:9090")
    assert (code, said) == (
        ExitCode.USAGE,
        "brokers: --host: a host has no port in it: --host 127.0.0.1 --port 9090\n",
    )


def test_who_is_not_there_to_be_kicked_is_an_error_line(command: Run, shared_server: Server) -> None:
    code, _, said = command("kick", "nosuch", "--data-dir", str(shared_server.data))
    assert (code, said) == (ExitCode.MISSING, "brokers: there is no connection nosuch\n")


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("logmq trim orders 99", ExitCode.USAGE, "offset is a number from 0 to "),
        ("logmq create old --durability soon", ExitCode.USAGE, "not 'soon'"),
        ("logmq change orders --unset age", ExitCode.USAGE, "--unset: 'age' is none of retention-bytes, "),
        ("dms redrive jobs --rate often", ExitCode.USAGE, "rate is so many messages a second"),
        ("bridge create one --from logmq:a --to dms:b --rate x", ExitCode.USAGE, "rate: is so many messages"),
        ("logmq groups reset billing '' first", ExitCode.USAGE, "a name is empty"),
        ("bridge delete ''", ExitCode.USAGE, "a name is empty"),
        ("definitions export --nope", ExitCode.USAGE, "there is no flag --nope; a file is ./--nope"),
        ("kick 'nix-\x1b[31m'", ExitCode.MISSING, "there is no connection nix-\\x1b[31m\n"),
        ("dms import .", ExitCode.FAILED, ": Is a directory\n"),
    ],
)
def test_a_wrong_word_is_told_in_a_line_with_the_exit_code(
    command: Run, shared_server: Server, line: str, code: ExitCode, text: str
) -> None:
    speak(shared_server.address("logmq"), b"PRODUCE orders x\n")
    command("dms", "create", "jobs", "--exist-ok", "--data-dir", str(shared_server.data))
    got, _, said = command(*shlex.split(line), "--data-dir", str(shared_server.data))
    assert got == code, said
    assert text in said
    assert (said[:9], said.count("\n"), "INTERNAL" in said) == ("brokers: ", 1, False)


def test_a_message_that_has_too_much_beside_it_is_refused_in_its_words(
    command: Run, shared_server: Server
) -> None:
    where = ("--port", str(shared_server.address("dms")[1]))
    command("dms", "create", "jobs", "--exist-ok", *where)
    code, _, said = command("dms", "produce", "jobs", "x", "--key", "k" * 5000, *where)
    assert code == ExitCode.FAILED
    assert "at most 0 in a queue of this name, with the 5012 bytes that are said of it" in said
    code, _, said = command("dms", "produce", "jobs", "x", "--key", "k" * 70000, *where)
    assert code == ExitCode.FAILED
    assert said.startswith("brokers: PROTOCOL_ERROR: 70010 bytes of JSON; at most 65535")


def test_a_folder_that_cannot_be_repaired_is_told_what_is_next(command: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill(folder, {("logmq", "orders"): [b"x" * 100]})
    where = ("--data-dir", str(folder))
    assert "next" not in command("fsck", *where)[1]
    (log,) = (
        each for each in (folder / "logmq").rglob("*") if each.is_file() and b"x" * 100 in each.read_bytes()
    )
    flip(log, 8 * log.read_bytes().index(b"x" * 100))
    code, out, _ = command("fsck", *where)
    assert code == ExitCode.FAILED
    assert "brokers fsck --repair puts right what can be" in out
    code, out, _ = command("fsck", "--repair", *where)
    assert code == ExitCode.FAILED
    assert "cannot be repaired: brokers restore" in out


def test_status_fits_a_terminal(command: Run, shared_server: Server) -> None:
    _, out, _ = command("status", "--data-dir", str(shared_server.data))
    assert len(out.splitlines()) < 30
    assert "read_only" in out


def test_what_a_reload_changed_is_said_of_bridges_too(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "brokers.toml"
    bridge = '[[bridge]]\nname = "hall"\nfrom = "pubsub:hall/*"\nto = "logmq:hall"\nas = "{}"\n'
    file.write_text(bridge.format("raw"))
    with Server(tmp_path, "--config", str(file)) as server:
        where = ("--data-dir", str(server.data))
        assert "changed: no setting" in command("reload", *where)[1]
        file.write_text(bridge.format("json"))
        assert "changed: bridge.hall" in command("reload", *where)[1]
        _, out, _ = command("definitions", "export", "-", *where)
    assert '"queues": []' in out
    assert "bridges" not in out, "which an empty list would deny"
