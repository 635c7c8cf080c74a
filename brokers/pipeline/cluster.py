"""`brokers pipeline master` and `worker`: Spark's own standalone cluster, from the pip package.

Each becomes Spark's process (its JVM, by Spark's own scripts), so signals and exit codes are Spark's. The
settings here close what Spark leaves open. The REST port, over which anybody may submit programs, stays shut.
Nothing listens beyond the given host. Whoever connects must know the secret.
"""

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from brokers.errors import ExitCode, Failure
from brokers.pipeline import secret
from shared.cli.options import BoundPort, a_path, flag
from shared.errors import UsageError

SecretFile = Annotated[
    Path | None,
    Parameter(
        help="The cluster's secret is in this file (0600); else in ~/.config/brokers/spark.secret.",
        converter=a_path,
    ),
]
Insecure = Annotated[bool, flag("Without a secret: whoever reaches the host may run programs there.")]
UiPort = Annotated[BoundPort, Parameter(help="The port of the web page that shows how it does; 0 picks one.")]

LOOPBACK = "127.0.0.1"
_URL = re.compile(r"spark://\S+:\d+")
_MEMORY = re.compile(r"[1-9]\d*[mgt]b?", re.IGNORECASE)

_DAEMON_MEMORY = "256m"
"""The memory of a master or a worker itself, which does little. Spark's default is 1 GiB."""


def master(
    *,
    host: Annotated[
        str, Parameter(help="Listen on this host's address; the cluster finds it by it.")
    ] = LOOPBACK,
    port: BoundPort = 7077,
    ui_port: UiPort = 8081,
    secret_file: SecretFile = None,
    insecure: Insecure = False,
) -> None:
    """Be the master of a Spark cluster, until told to stop.

    Who reaches its port and knows the secret can run programs on the cluster. A
    secret file that is not there is made.
    """
    arguments = [*_host(host), "--port", str(port), "--webui-port", str(ui_port)]
    known = None if insecure else secret.read_or_make(secret_file or secret.usual())
    become("master.Master", arguments, _surroundings(host, known))


def worker(
    url: Annotated[str, Parameter(help="The master: spark://host:port.")],
    /,
    *,
    host: Annotated[
        str | None,
        Parameter(help="Listen on this host's address; else on that from which the master is reached."),
    ] = None,
    port: BoundPort = 0,
    ui_port: UiPort = 0,
    cores: Annotated[int | None, Parameter(help="Processors to offer; all, unless set.")] = None,
    memory: Annotated[str | None, Parameter(help="Memory to offer (4g); all but 1 GiB, unless set.")] = None,
    work_dir: Annotated[
        Path | None, Parameter(help="For programs' logs and files.", converter=a_path)
    ] = None,
    secret_file: SecretFile = None,
    insecure: Insecure = False,
) -> None:
    """Be a worker of a Spark cluster, until told to stop."""
    # For these mistakes Spark prints a stack trace, or nothing.
    for name, given, pattern, text in (
        ("URL", url, _URL, "not spark://host:port"),
        ("--memory", memory, _MEMORY, "not an amount of memory, such as 600m or 4g"),
    ):
        if given is not None and not pattern.fullmatch(given):
            raise UsageError(name, f"{text}: {given!r}")
    if cores is not None and cores < 1:
        raise UsageError("--cores", "it is 1 at least")
    offered = [
        *(["--cores", str(cores)] if cores is not None else []),
        *(["--memory", memory] if memory is not None else []),
        *(["--work-dir", str(work_dir)] if work_dir is not None else []),
    ]
    ports = ["--port", str(port), "--webui-port", str(ui_port)]
    host = _facing(url) if host is None else host
    arguments = [*_host(host), *ports, *offered, url]
    known = None if insecure else secret.read(secret_file or secret.usual())
    become("worker.Worker", arguments, _surroundings(host, known))


def become(name: str, arguments: Sequence[str], more: Mapping[str, str]) -> None:
    """Replace this process by one of Spark's. `more`: variables for it. Raises NoSpark, NoJava, OSError."""
    from brokers.pipeline import java
    from brokers.pipeline.session import require_spark

    require_spark()
    import pyspark

    home = Path(pyspark.__file__).parent
    java.use()
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    sys.stdout.flush()
    os.execve(command[0], command, environ(os.environ, home, more))


def environ(given: Mapping[str, str], home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Spark's scripts. `given` wins, except for the REST port and the secret."""
    found = {"SPARK_DAEMON_MEMORY": _DAEMON_MEMORY, **more, **given, "SPARK_HOME": str(home)}
    if secret.VARIABLE in more:
        found[secret.VARIABLE] = more[secret.VARIABLE]
        asked = "-Dspark.authenticate=true"
        found["SPARK_DAEMON_JAVA_OPTS"] = f"{given.get('SPARK_DAEMON_JAVA_OPTS', '')} {asked}".strip()
    # The page of a master has no password, so it shows jobs and cannot end any.
    shut = "-Dspark.master.rest.enabled=false"
    shows = "-Dspark.ui.killEnabled=false"
    options = (shows, given.get("SPARK_MASTER_OPTS", ""), shut)
    found["SPARK_MASTER_OPTS"] = " ".join(filter(None, options))
    clean = "-Dspark.worker.cleanup.enabled=true"
    found["SPARK_WORKER_OPTS"] = f"{clean} {given.get('SPARK_WORKER_OPTS', '')}".strip()
    return found


def _surroundings(host: str, known: str | None) -> dict[str, str]:
    """Return the variables of a daemon on that host. Its page listens on SPARK_LOCAL_IP."""
    return {"SPARK_LOCAL_IP": _bare(host), **({secret.VARIABLE: known} if known is not None else {})}


def _facing(url: str) -> str:
    """Return this machine's address towards the master. Raises Failure if the master's host is unknown."""
    from shared.net.listeners import resolve

    fault: OSError | None = None
    for place in url.removeprefix("spark://").split(","):
        name, _, port = place.rpartition(":")
        try:
            for family, address in resolve(_bare(name), int(port), socket.SOCK_DGRAM):
                with socket.socket(family, socket.SOCK_DGRAM) as asking:
                    asking.connect((address, int(port)))  # which sends nothing
                    return str(asking.getsockname()[0])
        except OSError as error:
            fault = error
    raise Failure(f"URL: no way to {url}: {fault.strerror if fault else ''}", ExitCode.UNAVAILABLE)


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _host(host: str) -> list[str]:
    """Return Spark's argument. Raises Failure if nothing can listen there; Spark prints a stack trace."""
    name = _bare(host)
    error = listen_fault(name)
    if error is not None:
        raise Failure(f"--host: cannot listen on {name}: {error.strerror}", ExitCode.CONFIGURATION)
    return ["--host", f"[{name}]" if ":" in name else name]


def listen_fault(host: str) -> OSError | None:
    """Return why nothing can listen on a host; None if one of its addresses works."""
    from shared.net.listeners import resolve

    fault = None
    try:
        for family, address in resolve(host, 0, socket.SOCK_STREAM):
            try:
                socket.create_server((address, 0), family=family).close()
                return None
            except OSError as error:  # the next address may work: not every machine has all of `localhost`
                fault = error
    except OSError as error:
        return error
    return fault
