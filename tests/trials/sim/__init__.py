"""Deterministic simulation: clients, server and store in one trio run, on a mock clock, from one seed.

    make trial-sim SEEDS=200

A seed settles everything: which task runs next, what each client asks, how long a byte or a sync takes, where
a connection breaks, which disk operation fails, where the power goes off and in which legal state the disk
comes back. So a seed that fails fails again, with the same trace. What runs is the real thing: the services
of LogMQ and DMS (on one store, or one alone), AMQP's queues of jobs, bridges between LogMQ and queues of DMS
or DMP (`bridged.py`), their sessions, the store. Faked are the network (`network.py`, and the
driver of tests/support/stream_driver.py), the
disk (`disk.py` over tests/support/fake_disk.py), the clock and the threads (`world.py`, `threads.py`).

`model.py` and `tests/support/dms_model.py` know what every client sent and was told, and check what anybody
ever reads against it. `bugs.py` plants bugs, each of which the trial must find: a trial that cannot fail
proves nothing.
"""
