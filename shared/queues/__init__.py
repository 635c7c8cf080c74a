"""What queues of different protocols have in common."""
