"""The only place that touches sockets: listeners, the two drivers, outboxes, datagrams."""
