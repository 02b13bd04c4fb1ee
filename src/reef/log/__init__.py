"""The log: which of its objects count, how it is read, and how a writer takes it over.

Replay, LogEntry      decides slot by slot which objects are valid, void or skipped; a decided object
LogReader, Damaged    fetches slots, many at once; an object that was damaged in two reads
ChainPoint            the last valid object so far
put_fences, Fencing   takes the log from every older writer, by the rules given
check_epoch           refuses an object of a newer writer with FencedError
list_slots, find_end  the log objects that are there; where the log ends, and which slots are
                      missing, at most MISSING_MAX of them
list_log, ListedLog   the log from a slot on: what is there without a gap, and what lies behind one
absent                which numbers of a range are not there
LogPart, cut_log, read_log_part
                      some log objects to read and check by themselves; read_log_part gives a
                      ReadLogPart, with a LogRun for any number of objects and each UnreadableSlot
parse_slot            the slot that a file name holds
"""

from reef.log._fence import Fencing, check_epoch, put_fences
from reef.log._log_reader import LogReader
from reef.log._log_runs import LogPart, LogRun, ReadLogPart, UnreadableSlot, cut_log, read_log_part
from reef.log._log_slots import (
    MISSING_MAX,
    ListedLog,
    absent,
    find_end,
    list_log,
    list_slots,
    parse_slot,
)
from reef.log._replay import ChainPoint, Damaged, LogEntry, Replay

__all__ = [
    "MISSING_MAX",
    "ChainPoint",
    "Damaged",
    "Fencing",
    "ListedLog",
    "LogEntry",
    "LogPart",
    "LogReader",
    "LogRun",
    "ReadLogPart",
    "Replay",
    "UnreadableSlot",
    "absent",
    "check_epoch",
    "cut_log",
    "find_end",
    "list_log",
    "list_slots",
    "parse_slot",
    "put_fences",
    "read_log_part",
]
