"""The program of the process that hashes passwords for the server; `brokers.access.hashing` starts it.

It is run as a file and imports nothing of ours, to stay small. For each password standard input brings
`ASKED`, the salt and the password; standard output gets the key. It ends at the end of its input.
"""

import hashlib
import os
import signal
import struct
import sys

ASKED = struct.Struct("<IIIHHH")
"""scrypt's n, r, p; the lengths of key, salt and password."""


def stand_aside() -> None:
    """Run this process only while no other wants the processor.

    With the lowest priority alone (nice 19) it still raises the others' p99 by half. Raises OSError where the
    system forbids it.
    """
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def main() -> None:
    # Signals may go to all processes of a unit or a terminal; this one ends when the server closes its input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        stand_aside()
    except OSError:  # a sandbox: hashing then takes processor time from others, as it would in the server
        pass
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := asked.read(ASKED.size):
        n, r, p, key_bytes, salt_bytes, password_bytes = ASKED.unpack(head)
        salt, password = asked.read(salt_bytes), asked.read(password_bytes)
        answers.write(hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, dklen=key_bytes))
        answers.flush()


if __name__ == "__main__":
    main()
