"""Who a client is: flags, variables, files and URLs; and no text that shows a password."""

import pickle
import traceback
from pathlib import Path

import pytest

from shared.client.dial import Address
from shared.client.login import Login, Password, login_of, read_password, url_of

SECRET = "planted-Secret"


def test_what_is_given_wins_over_the_variables(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text(f"{SECRET} with: all \n")
    theirs.write_text("theirs\r\nand more")
    environ = {"BROKERS_USER": "bob", "BROKERS_PASSWORD_FILE": str(theirs)}
    found = login_of("ann", None, ours, environ)
    assert (found.user, found.secret) == ("ann", f"{SECRET} with: all ")
    found = login_of(environ=environ)
    assert (found.user, found.secret) == ("bob", "theirs")
    assert not login_of(environ={})


def test_a_password_is_in_no_repr_error_pickle_or_traceback() -> None:
    login = Login("ann", Password(SECRET))
    address = Address("h", 1, kind="test", login=login)
    try:
        hidden = [login, address, Password(SECRET)]
        raise ValueError(f"{hidden} {login.password}")
    except ValueError as error:
        shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        assert "<password>" in shown
        assert SECRET not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(address)
    assert login.hide(f"unknown word {SECRET}") == "unknown word ***"


@pytest.mark.parametrize("content", [b"", b"\nsecret\n", b"\xff\n", b"x" * 5000])
def test_a_file_without_a_password_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"the password file {file}"):
        read_password(file)
    with pytest.raises(ValueError, match=r"cannot read the password file .*nowhere: No such file"):
        read_password(tmp_path / "nowhere")


def test_a_url_says_what_the_flags_say() -> None:
    url = url_of("logmq+tls://an%40n@[::1]:80/?password-file=/p&ca=c.pem&certificate=o&key=k", "logmq")
    assert url is not None
    assert (url.host, url.port, url.tls, url.user) == ("::1", 80, True, "an@n")
    assert url.files == {"password_file": "/p", "ca": "c.pem", "certificate": "o", "key": "k"}
    assert url_of("broker.example", "logmq") is None
    address = Address.of("logmq://ann@broker.example", 8080, kind="LogMQ", protocol="logmq", password=SECRET)
    assert (address.host, address.port, address.ssl_context) == ("broker.example", 8080, None)
    assert (address.login.user, address.login.secret) == ("ann", SECRET)


@pytest.mark.parametrize(
    "text",
    [
        f"logmq://ann:{SECRET}@host",
        f"ann:{SECRET}@host",
        f"dms://ann:{SECRET}@host",
        f"logmq+ssl://ann:{SECRET}@host",
        f"logmq://host:{SECRET}",
        f"logmq://host/{SECRET}",
        f"logmq://host?password={SECRET}",
        f"logmq://ann@[{SECRET}",
        f"logmq://#{SECRET}",
    ],
)
def test_a_url_that_is_none_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match="URL") as refused:
        url_of(text, "logmq")
    error = traceback.TracebackException.from_exception(refused.value)
    assert SECRET not in "".join(error.format_exception_only())


def test_a_user_without_a_password_is_refused_unless_a_certificate_may_stand_for_it() -> None:
    with pytest.raises(ValueError, match="no password of ann"):
        Address.of("host", 1, kind="test", protocol="test", user="ann")
    with pytest.raises(ValueError, match="a password is given, and no user"):
        Address.of("host", 1, kind="test", protocol="test", password=SECRET)
    assert Address.of("host", 1, kind="test", protocol="test", user="ann", tls=True).login.user == "ann"
