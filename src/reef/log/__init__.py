"""The log: which of its objects count, how it is read, and how a writer takes it over.

LogFold, LogEntry     decides slot by slot what is valid, void or passed over; a decided object
LogReader, Damaged    fetches slots, many at once; an object that was damaged in two reads
ChainPoint            the last valid object of a fold
put_fences, Fencing   takes the log from every older writer, by the rules given
check_epoch           refuses an object of a newer writer with FencedError
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
