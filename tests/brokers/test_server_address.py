"""Which running server a command asks, by socket or port, and what it says where that fails."""

import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from brokers.commands import control
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from shared.errors import BrokerError, UsageError
from tests.brokers.conftest import Run
from tests.support.server import Server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("BROKERS_CONTEXT", "BROKERS_SERVE_DATA_DIR", "BROKERS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def token_of(server: Server) -> Path:
    return server.data / "admin.token"


def test_the_same_answer_by_socket_by_url_and_by_context(
    command: Run, home: Path, shared_server: Server
) -> None:
    page, token = shared_server.ready["page"], str(token_of(shared_server))
    assert command("context", "add", "here", page, "--token-file", token)[0] == ExitCode.OK
    ways = (
        ("--data-dir", str(shared_server.data)),
        ("--url", page, "--token-file", token),
        ("--host", page, "--token-file", token),
        ("--context", "here"),
    )
    for words in (("dms", "queues", "--json"), ("dms", "list", "--json")):
        answers = {command(*words, *way) for way in ways}
        assert len(answers) == 1
        assert next(iter(answers))[0] == ExitCode.OK


def test_a_context_counts_where_no_flag_and_no_variable_says_otherwise(
    command: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**flags: object) -> str | Path | None:
        place = ServerAddress(**flags).resolved()  # type: ignore[arg-type]
        return place.url or place.data_dir

    assert asked() == Path("data")
    for name, where in (("one", "http://one:1"), ("two", "http://two:2")):
        assert command("context", "add", name, where, "--user", "ann", "--password-file", "p")[0] == 0
    assert command("context", "use", "one")[0] == ExitCode.OK
    assert asked() == "http://one:1"
    assert asked(data_dir=Path("d")) == Path("d")
    assert asked(url="http://three:3") == "http://three:3"
    monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", "said")
    assert asked() == Path("said")
    monkeypatch.setenv("BROKERS_CONTEXT", "two")
    assert asked() == "http://two:2"
    assert asked(context="one") == "http://one:1"
    found = ServerAddress(token_file=Path("t")).resolved()
    assert (found.url, found.user, found.password_file) == ("http://two:2", None, None), "one login, not two"
    with pytest.raises(UsageError, match="names a server already"):
        ServerAddress(context="one", url="http://three:3").client()


def test_the_file_of_contexts_is_its_owners_alone_and_says_what_was_added(command: Run, home: Path) -> None:
    assert command("context", "add", 'a"b', "http://x:1")[0] == ExitCode.USAGE
    assert command("context", "add", "a.b", "https://x:1", "--ca", "own \\ \u00e9.pem")[0] == ExitCode.OK
    file = home / ".config/brokers/contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    _, said, _ = command("context", "list", "--columns", "context,used,url,ca")
    assert said.splitlines()[1].split(maxsplit=3) == ["a.b", "no", "https://x:1", f"{home}/own \\ \u00e9.pem"]
    assert command("context", "rm", "ab") == (
        ExitCode.MISSING,
        "",
        f"brokers: there is no context ab in {file}; did you mean a.b?\n",
    )
    assert command("context", "rm", "a.b")[0] == ExitCode.OK
    assert command("context", "list") == (ExitCode.OK, "", "")


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://x:0", "http://ann:pw@x:1", "http://x:1/?token=pw", "x:1", "http://["],
)
def test_what_is_no_url_of_an_admin_port_is_a_mistake_that_shows_no_secret(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServerAddress(url=url).client()
    assert "pw" not in str(refused.value)


def test_a_login_that_is_for_no_port_is_a_mistake(home: Path) -> None:
    with pytest.raises(UsageError, match="--user: is for an admin port"):
        ServerAddress(user="ann").client()


@pytest.mark.parametrize(
    ("token", "code", "said"),
    [
        (None, ExitCode.FAILED, "wants a login"),
        ("wrong", ExitCode.FAILED, "wants a login (the login does not fit)"),
        ("", ExitCode.USAGE, "has no token in its first line"),
        ("\u20ac", ExitCode.USAGE, "holds no token"),
    ],
)
def test_a_login_that_does_not_fit_says_what_would(
    command: Run, home: Path, shared_server: Server, token: str | None, code: ExitCode, said: str
) -> None:
    words = ["status", "--url", shared_server.ready["page"]]
    if token is not None:
        Path("token").write_text(f"{token}\n")
        words += ["--token-file", "token"]
    got, out, line = command(*words)
    assert (got, out) == (code, "")
    assert said in line
    assert "--token-file" in line


def test_where_nobody_listens_the_exit_code_is_that_of_no_server(command: Run) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        code, _, said = command("status", "--url", url)
    assert (code, said) == (ExitCode.UNAVAILABLE, f"brokers: {url} cannot be reached: Connection refused\n")


Serve = Callable[[bytes, ssl.SSLContext | None], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers one request with these bytes; gives host and port."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def begin(answer: bytes, tls: ssl.SSLContext | None) -> str:
            def run() -> None:
                try:
                    sock, _ = listener.accept()
                    with tls.wrap_socket(sock, server_side=True) if tls else sock as stream:
                        stream.recv(65536)
                        stream.sendall(answer)
                except OSError:
                    pass  # what the other end thinks of it is what is tested

            threads.append(threading.Thread(target=run))
            threads[-1].start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield begin
        for thread in threads:
            thread.join()


def test_a_certificate_is_trusted_by_its_authority_alone(serve: Serve, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    answer = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
    with pytest.raises(Failure, match=r"is not trusted: .*--ca") as refused:
        ServerAddress(url=f"https://{serve(answer, context)}").client().request("GET", "/status")
    assert refused.value.code == ExitCode.UNAVAILABLE
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client = ServerAddress(url=f"https://{serve(answer, context)}", ca=tmp_path / "ca.pem").client()
    assert client.request("GET", "/status") == {"a": 1}


def test_a_port_of_tls_that_is_asked_in_the_clear_says_so(serve: Serve) -> None:
    client = control.port_client(f"http://{serve(bytes.fromhex('15030100020246'), None)}")
    with pytest.raises(Failure, match="https://"):
        client.request("GET", "/status")


def test_a_port_in_the_clear_that_is_asked_by_tls_says_so(serve: Serve) -> None:
    client = ServerAddress(url=f"https://{serve(b'HTTP/1.1 400 Bad Request', None)}").client()
    with pytest.raises(Failure, match=r"speaks no TLS: .*http://"):
        client.request("GET", "/status")


@pytest.mark.parametrize(
    ("status", "kind", "body", "said", "code"),
    [
        ("200 OK", "text/html", b"<html>", "is no admin port of brokers", ExitCode.FAILED),
        ("200 OK", "application/json", b"{", "of another version", ExitCode.FAILED),
        (
            "404 Not Found",
            "application/problem+json",
            b'{"detail": "Not Found"}',
            "version",
            ExitCode.MISSING,
        ),
        ("404 Not Found", "application/problem+json", b'{"detail": "no x"}', "^no x$", ExitCode.MISSING),
        ("403 Forbidden", "application/problem+json", b'{"detail": "denied"}', "admin:read", ExitCode.FAILED),
        ("409 Conflict", "application/json", b'{"detail": "e", "exit_code": 999}', "^e$", ExitCode.FAILED),
    ],
)
def test_an_answer_that_helps_nobody_is_told_in_words(
    serve: Serve, status: str, kind: str, body: bytes, said: str, code: ExitCode
) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    client = control.port_client(f"http://{serve(head.encode() + body, None)}")
    with pytest.raises(BrokerError, match=said) as refused:
        client.request("GET", "/api/v1/overview")
    assert isinstance(refused.value, Failure)
    assert refused.value.code == code


def test_a_context_in_use_counts_for_verbs_that_know_two_ways_but_not_before_a_host(
    command: Run, home: Path
) -> None:
    assert command("context", "add", "gone", "http://127.0.0.1:1")[0] == ExitCode.OK
    assert command("context", "use", "gone")[0] == ExitCode.OK
    assert "http://127.0.0.1:1 cannot be reached" in command("logmq", "consume", "jobs")[2]
    assert "127.0.0.1:2: " in command("logmq", "consume", "jobs", "--port", "2")[2]


SPEAKING = (
    ("dms", "list"),
    ("logmq", "topics"),
    ("kqmsgq", "produce", "news", "hello"),
    ("pubsub", "publish", "a", "--int", "1"),
    ("dmp", "declare", "queue", "jobs"),
    ("dms", "queues"),
    ("status", "--ready"),
)


@pytest.mark.parametrize("words", SPEAKING)
def test_a_context_in_use_is_the_server_of_every_command(
    words: tuple[str, ...], command: Run, home: Path, shared_server: Server
) -> None:
    page, token = shared_server.ready["page"], str(token_of(shared_server))
    for way in ((page, "--token-file", token), ("--data-dir", str(shared_server.data))):
        assert command("context", "add", "here", *way)[0] == ExitCode.OK
        assert command("context", "use", "here")[0] == ExitCode.OK
        code, _, said = command(*words)
        assert (code, said) == (ExitCode.OK, "")
        assert command("context", "rm", "here")[0] == ExitCode.OK
    assert command("context", "add", "gone", "http://127.0.0.1:1")[0] == ExitCode.OK
    assert command("context", "use", "gone")[0] == ExitCode.OK
    code, _, said = command(*words)
    assert code == ExitCode.UNAVAILABLE
    assert "http://127.0.0.1:1 cannot be reached" in said


def test_the_server_of_the_folder_here_is_found_by_all_commands(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command of a group asked `./data`, and the next the usual port: two servers."""
    monkeypatch.chdir(tmp_path)
    with Server(tmp_path):
        assert command("dms", "create", "here")[0] == ExitCode.OK
        assert "here" in command("dms", "list")[1]
        assert "here" in command("dms", "queues")[1]
        assert command("logmq", "produce", "orders", "hello")[0] == ExitCode.OK
        assert "orders" in command("topics")[1]


def test_a_port_that_may_be_another_servers_here_is_refused(
    command: Run, home: Path, shared_server: Server
) -> None:
    """Behind a tunnel or a container's published port the same number may be anybody's."""
    host, port, _ = control.address_in(shared_server.ready["page"])
    token = str(token_of(shared_server))
    with tunnel(host, port) as url:
        assert command("dms", "queues", "--url", url, "--token-file", token)[0] == ExitCode.OK
        code, _, said = command("dms", "list", "--url", url, "--token-file", token)
    assert code == ExitCode.UNAVAILABLE
    assert "leads to another machine or container" in said
    assert "--host and --port" in said


@contextmanager
def tunnel(host: str, port: int) -> Iterator[str]:
    """The URL of a port whose connections are carried on to another."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, port))
                opened.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for end in opened:
        end.close()


@pytest.mark.parametrize("words", [("dms", "queues"), ("queues",), ("dms", "peek", "jobs"), ("backup", "b")])
def test_a_command_of_the_admin_port_refuses_a_protocols_own(words: tuple[str, ...], command: Run) -> None:
    for way in (("--host", "broker"), ("--port", "9090"), ("--url", "dms://broker:9090")):
        code, _, said = command(*words, *way)
        assert code == ExitCode.USAGE
        assert "--url http(s)://HOST:15800, --context or --data-dir" in said


@pytest.mark.parametrize("words", [("fsck",), ("log", "ls"), ("restore", "b")])
def test_what_works_on_files_does_not_take_the_folder_here_for_a_server_elsewhere(
    words: tuple[str, ...], command: Run, home: Path
) -> None:
    assert command("context", "add", "prod", "http://broker:15800")[0] == ExitCode.OK
    assert command("context", "use", "prod")[0] == ExitCode.OK
    code, _, said = command(*words)
    assert code == ExitCode.USAGE
    assert "which folder? The context in use names http://broker:15800" in said
    assert "which folder?" not in command(*words, "-D", "data")[2]


def test_paths_are_made_absolute_here_and_sent_as_they_are_to_another_machine(
    command: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    def request(_: object, method: str, path: str, body: dict[str, str]) -> object:
        asked.append(body)
        raise Failure("enough")

    monkeypatch.setattr(control.AdminClient, "request", request)
    Path("data").mkdir()
    for way in ((), ("--url", "http://there:1", "--token-file", "token")):
        Path("token").write_text("x\n")
        command("backup", "today", *way)
        command("dms", "export", "orders.dmsq", "-q", "orders", *way)
        command("dms", "import", "orders.dmsq", *way)
    local, there = [[list(each.values())[-1] for each in some] for some in (asked[:3], asked[3:])]
    assert local == [f"{home}/today", f"{home}/orders.dmsq", f"{home}/orders.dmsq"]
    assert there == ["today", "orders.dmsq", "orders.dmsq"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("contexts = 3", "contexts are tables"),
        ("[contexts]\nx = 3", "contexts are tables"),
        ("[contexts.x]\nurl = 5", "text in quotes"),
        ("use = [", "Invalid"),
        ("[contexts.x]\n", "has to have a url or a data_dir"),
        ("[contexts.x]\nurl = 'http://y'\npassword = 'secret'", "has an unknown password"),
    ],
)
def test_a_file_of_contexts_that_says_nothing_usable_asks_no_other_server(
    command: Run, home: Path, text: str, said: str
) -> None:
    file = home / ".config/brokers/contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    code, _, line = command("status", "--context", "x")
    assert code == ExitCode.CONFIGURATION
    assert line.startswith(f"brokers: {file}: ")
    assert said in line
    assert "secret" not in line
