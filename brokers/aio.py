"""Clients on asyncio, natively: `async with brokers.aio.connect("dms://localhost:9090") as client`.

It is `brokers.connect`, which takes the loop that runs. uvloop is one of asyncio's.
"""

from brokers import connect as connect
