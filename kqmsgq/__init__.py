"""KqueueMsgQ: queues by name, fanned out from memory to whoever subscribes (PROTOCOL.md)."""
