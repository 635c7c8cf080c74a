"""Parts that the queues of several protocols share."""
