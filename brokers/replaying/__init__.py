"""`brokers replay`: what passed through goes out again, from recordings, logs and archives."""
