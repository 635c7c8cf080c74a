"""The command line: what each command asks, where, and how the answer is shown."""
