"""The process that serves: its store, its protocols under supervision, its log and its loop."""
