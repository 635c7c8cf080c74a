"""Conformance: the golden bytes of each wire, played against a server, or against a client."""
