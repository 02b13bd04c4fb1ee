"""Two-phase CAS: put-if-absent for stores without it, over a transactional database.

TwoPhaseStore       the store: a record in the database decides who owns a name
RecoveryReport      what a recovery of half-done records did
Records, Record     the table of records, and one of them
PlainStore          what it needs of the store below: nothing conditional
TEMPORARY_PREFIX, PAGE_ROWS
                    where objects wait for their record; how many records one query reads
"""

from reef.store.two_phase._intent_records import PAGE_ROWS, Record, Records
from reef.store.two_phase._store import (
    TEMPORARY_PREFIX,
    PlainStore,
    RecoveryReport,
    TwoPhaseStore,
)

__all__ = [
    "PAGE_ROWS",
    "TEMPORARY_PREFIX",
    "PlainStore",
    "Record",
    "Records",
    "RecoveryReport",
    "TwoPhaseStore",
]
