"""Spark as a client of Reef: sessions, and the data source "reef".

session      a Spark session with the data source: the running one, or a new one
register     add the data source to a session that somebody else made
write        a DataFrame into a namespace, as the data source does; what was done: WriteResult
bulk_load    a DataFrame into a namespace, sorted by Spark, committed all at once
"""

try:
    from reef.spark._session import register, session
    from reef.spark._write import bulk_load, write
    from reef.spark._write_commit import WriteResult
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError(
        "reef.spark needs PySpark: pip install 'reefdb[spark]'", name="pyspark"
    ) from error

__all__ = ["WriteResult", "bulk_load", "register", "session", "write"]
