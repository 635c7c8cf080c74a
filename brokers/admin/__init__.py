"""The HTTP application for operators: its two doors, the API, lists, metrics and streams."""
