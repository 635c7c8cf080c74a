"""Jobs: each a function from frames to a frame, what reads for them, and their commands (`cli.py`)."""
