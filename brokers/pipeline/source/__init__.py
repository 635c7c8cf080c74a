"""The Spark data source `logmq`: logs of this suite as DataFrames and streams. Source: README.md."""
