"""The secret of a Spark cluster: in a file that only its owner reads, and in no command line.

Spark itself reads such a file on Kubernetes only. So a master and a worker get the secret in their
environment. A driver gets it in a file of settings that is removed once its JVM has started.
"""

import os
import secrets
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from brokers.errors import ExitCode, Failure

SETTING = "spark.authenticate.secret.file"
"""Spark's own key, which a job gets by `--conf`."""
VARIABLE = "_SPARK_AUTH_SECRET"
"""The variable from which Spark's daemons take it, for themselves and their executors."""
AUTHENTICATE = "spark.authenticate"
_BYTES = 32
_CHARACTERS_MIN = 16
_SUBMIT = "PYSPARK_SUBMIT_ARGS"


def usual(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default file, in this user's folder of settings."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "brokers" / "spark.secret"


def read(file: Path) -> str:
    """Read the secret. Raises Failure, whose text never has the secret."""
    try:
        with file.open() as opened:
            others = stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077
            secret = opened.read(4096).strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        text = f"secret file {file}: {why}; copy the master's there, or name it (--secret-file)"
        raise Failure(text, ExitCode.CONFIGURATION) from None
    if others:
        raise Failure(f"secret file {file}: others may read it; chmod 600 it", ExitCode.CONFIGURATION)
    if len(secret) < _CHARACTERS_MIN or len(secret.split()) > 1:
        text = f"secret file {file}: not one word of {_CHARACTERS_MIN} characters at least"
        raise Failure(text, ExitCode.CONFIGURATION)
    return secret


def read_or_make(file: Path) -> str:
    """Read the secret, or make a file with a new one. Raises Failure."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read(file)
    except OSError as error:
        raise Failure(f"secret file {file}: {error.strerror}", ExitCode.CONFIGURATION) from None
    with open(number, "w") as opened:
        opened.write(f"{secrets.token_hex(_BYTES)}\n")
    return read(file)


@contextmanager
def lent(
    settings: MutableMapping[str, str], environ: MutableMapping[str, str] = os.environ
) -> Iterator[None]:
    """Let a driver's JVM that starts within the block know the secret that `settings` name.

    The setting is removed from `settings`. Without any setting of authentication the user's default file is
    taken, if it exists. Raises Failure.
    """
    file = settings.pop(SETTING, None)
    if file is None and AUTHENTICATE not in settings and usual(environ).exists():
        file = str(usual(environ))
    if file is None:
        yield
        return
    secret = read(Path(file))
    settings[AUTHENTICATE] = "true"
    given = environ.get(_SUBMIT)
    with tempfile.NamedTemporaryFile("w", prefix="brokers-", suffix=".conf") as lines:  # 0600
        lines.write(f"spark.authenticate.secret {secret}\n")
        lines.flush()
        ours = f"--load-spark-defaults --properties-file {shlex.quote(lines.name)}"
        environ[_SUBMIT] = f"{ours} {given or 'pyspark-shell'}"
        try:
            yield
        finally:
            if given is None:
                del environ[_SUBMIT]
            else:
                environ[_SUBMIT] = given
