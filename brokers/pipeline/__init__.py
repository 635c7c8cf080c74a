"""The data pipeline: PySpark over everything that passed through. Source: README.md.

    from brokers.pipeline import session

    spark = session()
    orders = spark.read.format("logmq").option("path", "data").option("subscribe", "orders").load()

Importing this costs next to nothing: Spark is imported when a session is asked for, and only the extra
`spark` brings it.
"""

from brokers.pipeline.catalog import views
from brokers.pipeline.session import register, session

__all__ = ["register", "session", "views"]
