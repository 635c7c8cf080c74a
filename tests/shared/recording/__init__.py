"""Recording: what is written down of what passes through, and what is made of it."""
