"""How a stand-in poses as `brokers serve`: its flags, its ready file, a thread for each connection."""

import argparse
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

State = TypeVar("State")


def pose(
    protocol: str,
    faults: Sequence[str],
    open_state: Callable[[Path, str], State],
    serve: Callable[[State, socket.socket], None],
) -> None:
    """Serve until killed, with the fault that the command line plants."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=faults, default="")
    parser.add_argument("verb")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    options, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    state = open_state(options.data_dir, options.fault)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        host, port = listener.getsockname()
        bound = {"protocol": protocol, "endpoint": protocol, "host": host, "port": port}
        # As the real one does: a kill at any moment leaves a whole ready file or none.
        near = options.ready_file.with_suffix(".new")
        near.write_text(json.dumps({"addresses": [bound]}))
        near.replace(options.ready_file)
        print('{"event": "ready"}', file=sys.stderr, flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(state, connection), daemon=True).start()
