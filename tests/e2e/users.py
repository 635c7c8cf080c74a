"""Servers that know users: their file, and over TLS the certificate of an authority that both ends trust."""

from collections.abc import Mapping
from pathlib import Path

import trustme

from shared.access import User, written_users
from tests.support.forked import quick_passwords
from tests.support.server import Server


def write_users(data: Path, users: Mapping[str, User]) -> Path:
    """The users file of a data folder, its owner's alone. The folder is made where it is not there."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = data / "users.toml"
    file.touch(0o600)
    file.write_text(written_users(users))
    return file


def server_of(
    folder: Path,
    users: Mapping[str, User],
    *,
    enable: str,
    authority: trustme.CA | None = None,
    **environ: str,
) -> Server:
    """A server, not started yet, that takes the passwords of `quick_passwords`.

    `authority`: it speaks TLS with a certificate of this one, whose own is in `ca.pem`, and asks for others.
    """
    with quick_passwords():
        write_users(folder / "data", users)
    if authority is not None:
        authority.cert_pem.write_to_path(folder / "ca.pem")
        served = authority.issue_cert("localhost", "127.0.0.1")
        served.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        environ["BROKERS_TLS_CERTIFICATE"] = str(folder / "server.pem")
        environ["BROKERS_TLS_CLIENT_CA"] = str(folder / "ca.pem")
    return Server(folder, environ={"BROKERS_SERVE_ENABLE": enable, **environ}, quick=True)
