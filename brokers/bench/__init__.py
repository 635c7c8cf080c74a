"""Benchmarks: each a module with a function `bench`, whose parameters are its flags and whose rows are shown.

One line in `cli.py` makes it a command. A benchmark of a protocol is named as that protocol, and is the only
module of the host that may import it.
"""
