"""AMQP 0-9-1: the principal protocol, which authenticates and wires."""
