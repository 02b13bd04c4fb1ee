"""The log: which of its objects count, how it is read, and how a writer takes it over.

LogFold      decides slot by slot what is valid, void or passed over
LogReader    fetches slots, many at once, and reads a damaged one again before it means anything
put_fences   takes the log from every older writer
"""

from reef.log._fence import Fencing, check_epoch, put_fences
from reef.log._fold import ChainPoint, Damaged, LogEntry, LogFold
from reef.log._read import LogReader

__all__ = [
    "ChainPoint",
    "Damaged",
    "Fencing",
    "LogEntry",
    "LogFold",
    "LogReader",
    "check_epoch",
    "put_fences",
]
