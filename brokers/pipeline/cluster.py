"""`brokers pipeline master` and `worker`: Spark's own standalone cluster, from the pip package.

Each becomes Spark's process (its JVM, by Spark's own scripts), so signals and exit codes are Spark's. What is
set here is what Spark leaves open: the REST port, over which anybody may submit programs, stays shut.
"""

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from brokers.errors import ExitCode, Refusal
from shared.errors import UsageError
from shared.net.listeners import resolve
from shared.options import BoundPort

Host = Annotated[str | None, Parameter(help="Listen on this host's address; the cluster finds it by it.")]
UiPort = Annotated[BoundPort, Parameter(help="The port of the web page that shows how it does; 0 picks one.")]

_URL = re.compile(r"spark://\S+:\d+")
_MEMORY = re.compile(r"[1-9]\d*[mgt]b?", re.IGNORECASE)

_DAEMON_MEMORY = "256m"
"""Of a master or a worker itself, which only keep accounts: Spark's own 1 GiB would be idle memory."""


def master(*, host: Host = None, port: BoundPort = 7077, ui_port: UiPort = 8081) -> None:
    """Be the master of a Spark cluster, until told to stop.

    Who reaches its port can run programs on the cluster: keep it to a network of
    your own.
    """
    become("master.Master", [*_host(host), "--port", str(port), "--webui-port", str(ui_port)])


def worker(
    url: Annotated[str, Parameter(help="The master: spark://host:port.")],
    /,
    *,
    host: Host = None,
    port: BoundPort = 0,
    ui_port: UiPort = 0,
    cores: Annotated[int | None, Parameter(help="Processors to offer; all, unless set.")] = None,
    memory: Annotated[str | None, Parameter(help="Memory to offer (4g); all but 1 GiB, unless set.")] = None,
    work_dir: Annotated[Path | None, Parameter(help="For programs' logs and files.")] = None,
) -> None:
    """Be a worker of a Spark cluster, until told to stop."""
    # Spark itself says these with a stack trace, or never.
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
    become("worker.Worker", [*_host(host), *ports, *offered, url])


def become(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by one of Spark's. Raises NoSpark, NoJava, OSError."""
    from brokers.pipeline import java
    from brokers.pipeline.session import require_spark

    require_spark()
    import pyspark

    home = Path(pyspark.__file__).parent
    java.use()
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    sys.stdout.flush()
    os.execve(command[0], command, environ(os.environ, home))


def environ(given: Mapping[str, str], home: Path) -> dict[str, str]:
    """What Spark's scripts go by; what is given wins, but for the REST port."""
    found = {"SPARK_DAEMON_MEMORY": _DAEMON_MEMORY, **given, "SPARK_HOME": str(home)}
    shut = "-Dspark.master.rest.enabled=false"
    found["SPARK_MASTER_OPTS"] = f"{given.get('SPARK_MASTER_OPTS', '')} {shut}".strip()
    clean = "-Dspark.worker.cleanup.enabled=true"
    found["SPARK_WORKER_OPTS"] = f"{clean} {given.get('SPARK_WORKER_OPTS', '')}".strip()
    return found


def _host(host: str | None) -> list[str]:
    """As Spark's argument. Raises Refusal where nothing can listen, for which Spark has a stack trace."""
    if host is None:
        return []
    name = host.removeprefix("[").removesuffix("]")
    error = _fault(name)
    if error is not None:
        raise Refusal(f"--host: cannot listen on {name}: {error.strerror}", ExitCode.CONFIGURATION)
    return ["--host", f"[{name}]" if ":" in name else name]


def _fault(host: str) -> OSError | None:
    """Why nothing can listen on any of a host's addresses; None where something can."""
    fault = None
    try:
        for family, address in resolve(host, 0, socket.SOCK_STREAM):
            try:
                socket.create_server((address, 0), family=family).close()
                return None
            except OSError as error:  # the next may do: `localhost` has an address that not every machine has
                fault = error
    except OSError as error:
        return error
    return fault
