"""The only place that touches sockets: listeners, the driver, outboxes, datagrams."""
