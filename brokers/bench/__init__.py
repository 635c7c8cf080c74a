"""`brokers bench`: load on a server of one protocol, its own or one that runs.

A module named as a protocol says how that protocol is loaded. It is the only module of the host that may
import the protocol.
"""
