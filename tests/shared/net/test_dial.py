"""What a client's TLS flags mean, and how it is told that a file of them cannot be used."""

import ssl
from pathlib import Path

import pytest
import trustme

from shared.errors import UsageError
from shared.net.dial import tls_context

NOTHING = {"ca": None, "certificate": None, "key": None}


def test_no_flag_is_no_tls_and_any_file_implies_it(tmp_path: Path) -> None:
    assert tls_context(wanted=False, **NOTHING) is None
    assert isinstance(tls_context(wanted=True, **NOTHING), ssl.SSLContext)
    authority, ours = tmp_path / "ca.pem", tmp_path / "ours.pem"
    issued = trustme.CA()
    issued.cert_pem.write_to_path(authority)
    issued.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(ours)
    assert tls_context(wanted=False, ca=authority, certificate=ours, key=None) is not None


@pytest.mark.parametrize(
    ("file", "flag"), [("ca", "ca"), ("certificate", "certificate"), ("key", "key-file")]
)
def test_a_file_that_is_not_there_is_named_with_its_flag(tmp_path: Path, file: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^--{flag}: cannot read {tmp_path}/nowhere: No such file"):
        tls_context(wanted=True, **{**NOTHING, file: tmp_path / "nowhere"})


@pytest.mark.parametrize("flag", ["ca", "certificate"])
def test_a_file_that_is_something_else_is_named_with_its_flag(tmp_path: Path, flag: str) -> None:
    other = tmp_path / "other"
    other.write_text("something else")
    with pytest.raises(UsageError, match=f"^--{flag}: {other} "):
        tls_context(wanted=True, **{**NOTHING, flag: other})
