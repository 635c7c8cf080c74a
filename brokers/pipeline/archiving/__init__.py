"""`brokers pipeline archive`: logs as Parquet, partitioned by topic and date, each record exactly once.

A round (`job.py`) asks where the logs end and cuts what is new into ranges. Spark's executors read each
range, and write its records with pyarrow (`parquet.py`). Then a manifest that names the files is committed
(`folder.py`). The records go from the log to Parquet in one process, and never through the JVM.

**Why it is exactly once.** The manifest (`manifest.py`) alone says up to which offset a log is in the
archive. The write that adds files moves that offset. So no second place, such as a checkpoint, can disagree
after a crash. A file's name has the range of its offsets. Its writer checks that the records follow
each other byte by byte from the range's start to its end.

**What readers see.** Files are written in a hidden folder. Once a commit has named them they are renamed to
`topic=.../date=.../`. An archive that follows waits until a log has enough that is new, or until that is five
minutes old, so that files are few.
"""
