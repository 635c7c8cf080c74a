"""TLS: contexts from settings, when a certificate ends, and what OpenSSL's errors mean."""

import re
import ssl
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path

import attrs

from shared.errors import ConfigError
from shared.local_path import require_regular
from shared.metrics import Sample
from shared.net.settings import TlsSettings

DAY_SECONDS = 86_400


@attrs.frozen
class ServerTls:
    """What a listener needs for TLS. `ends`: when its certificate expires, in seconds since 1970."""

    context: ssl.SSLContext
    ends: float

    @classmethod
    def load(cls, settings: TlsSettings, section: str = "tls") -> "ServerTls | None":
        """Load the files as they are now; None if TLS is off. Raises ConfigError."""
        if not settings.enabled:
            return None
        context = server_context(settings, section)
        assert settings.certificate is not None
        try:
            return cls(context, certificate_ends(settings.certificate))
        except (OSError, ValueError, IndexError) as error:  # somebody writes it at this moment
            text = f"cannot read {settings.certificate}: {error}"
            raise ConfigError(f"{section}.certificate", text) from error

    def sample(self, protocol: str, now: float) -> Sample:
        """`now`: seconds since 1970."""
        days = (self.ends - now) / DAY_SECONDS
        text = "Until the certificate that new connections are shown ends."
        return Sample("certificate_days", days, text, "gauge", (("protocol", protocol),))


def server_context(settings: TlsSettings, section: str = "tls") -> ssl.SSLContext:
    """A server's context: TLS 1.2 or later; with `client_ca`, clients must show a certificate of it.

    Raises ConfigError, its key in `section`, for files that are missing or do not fit together.
    """
    if settings.certificate is None:
        raise ConfigError(f"{section}.certificate", "TLS needs a certificate")
    context = _tell_cuts(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # it lets a client cause work at no cost
    _readable(settings.certificate, f"{section}.certificate")
    if settings.key is not None:
        _readable(settings.key, f"{section}.key")
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except (OSError, ValueError) as error:  # those of OpenSSL are OSErrors, too
        if settings.key is None:
            text = (
                f"{settings.certificate} does not hold a certificate and its key (or name that: key): {error}"
            )
            raise ConfigError(f"{section}.certificate", text) from error
        raise ConfigError(f"{section}.key", f"not usable with {settings.certificate}: {error}") from error
    if settings.client_ca is not None:
        _readable(settings.client_ca, f"{section}.client_ca")
        try:
            context.load_verify_locations(settings.client_ca)
        except OSError as error:
            raise ConfigError(f"{section}.client_ca", f"not a PEM certificate: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


_FIRST_CERTIFICATE = re.compile(r"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END", re.S)
_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of ASN.1."""


def certificate_ends(path: Path) -> float:
    """When the first certificate of a PEM file expires (RFC 5280, 4.1). OpenSSL has accepted the file.

    Raises OSError, ValueError and IndexError where it has changed since.
    """
    found = _FIRST_CERTIFICATE.search(path.read_text(errors="replace"))
    if found is None:
        raise ValueError("it holds no certificate")
    der = b64decode(found[2])
    at = _element(der, _element(der, 0)[0])[0]  # inside the certificate, inside its signed part
    if der[at] == _VERSION:
        at = _element(der, at)[1]
    for _ in ("serial number", "algorithm", "issuer"):
        at = _element(der, at)[1]
    ends_at = _element(der, _element(der, at)[0])[1]  # behind `not before`
    begin, end = _element(der, ends_at)
    text = der[begin:end].decode()
    if der[ends_at] == _UTC_TIME:  # two-digit years mean 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the DER element at `at` begins and ends."""
    size = der[at + 1]
    at += 2
    if size >= 0x80:
        length = size - 0x80
        size = int.from_bytes(der[at : at + length], "big")
        at += length
    return at, at + size


def faults(settings: TlsSettings, section: str = "tls") -> list[ConfigError]:
    """All that prevents a server from using these settings: unreadable files, else what does not fit
    together.
    """
    found = []
    for name in ("certificate", "key", "client_ca"):
        path = getattr(settings, name)
        try:
            if path is not None:
                _readable(path, f"{section}.{name}")
        except ConfigError as error:
            found.append(error)
    if settings.certificate is None or not found:
        try:
            server_context(settings, section)
        except ConfigError as error:
            found.append(error)
    return found


def client_context(ca: str | Path | None = None, *, pem: str | None = None) -> ssl.SSLContext:
    """A client's context that trusts `ca` (a PEM file) or the text of one; else the system's.

    Raises OSError, ssl.SSLError.
    """
    return _tell_cuts(ssl.create_default_context(cafile=ca, cadata=pem))


def _tell_cuts(context: ssl.SSLContext) -> ssl.SSLContext:
    """Report a truncated stream as an error. Python before 3.11.4 takes it for an orderly end."""
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE")
_AS_CLIENT = {
    **dict.fromkeys(_NO_TLS, "the server speaks no TLS: leave out --tls, --ca and --certificate"),
    **dict.fromkeys(
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        "the server asks for a certificate of ours: name it with --certificate, and its key with --key-file",
    ),
    **dict.fromkeys(
        ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"),
        "the server does not trust our certificate: no authority that it knows has issued it",
    ),
    **dict.fromkeys(
        ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"),
        "the server and we speak no version of TLS in common",
    ),
}
_AS_SERVER = {
    **dict.fromkeys(_NO_TLS, "the peer speaks no TLS"),
    "HTTP_REQUEST": "the peer speaks HTTP, and no TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate, which client_ca asks for",
    "CERTIFICATE_VERIFY_FAILED": "the peer's certificate is of no authority in client_ca",
    **dict.fromkeys(
        ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"),
        "the peer does not trust our certificate",
    ),
    **dict.fromkeys(
        ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW"),
        "the peer speaks no TLS that is safe enough (1.2 or later)",
    ),
}
_NAME_MISMATCHES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and that of an address."""


def in_words(error: BaseException, *, server_side: bool = False) -> str:
    """What a TLS failure means, in words; for any other error its own text."""
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError) and not server_side:
        why = error.verify_message.rstrip(".")
        if error.verify_code in _NAME_MISMATCHES:
            return f"the server's certificate is another's ({why}): call it by its name with --host"
        return f"the server's certificate is not trusted ({why}): name its authority with --ca"
    if isinstance(error, ssl.SSLEOFError):
        if server_side:
            return "the peer closed the connection: perhaps it does not trust our certificate"
        return "the server closed the connection in the middle of TLS: perhaps it speaks none"
    meaning = (_AS_SERVER if server_side else _AS_CLIENT).get(error.reason or "")
    return meaning or str(error.args[-1])


def _readable(path: Path, key: str) -> None:
    try:
        require_regular(path)
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(key, f"cannot read {path}: {error.strerror}") from error


def _no_password() -> str:
    """Without this OpenSSL would ask on the terminal, and a supervised start would hang."""
    raise ValueError("the key is encrypted; a key without a password is needed")
