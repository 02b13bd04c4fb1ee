"""What tests of stores, and of what is built on them, need.

CountingStore   counts requests and bytes: Counts
LatencyStore    makes requests wait, on a clock that the test owns
FaultyStore     loses replies, stalls, refuses, damages and forgets, by plan or by chance: Fault and
                FaultKind say what goes wrong, Fired what did
WrapperStore    the base of these, for wrappers of your own; Operation names what is called
ManualClock     a clock that moves only when a test sleeps on it
contract        the module with `StoreContract`, the tests that every store must pass; needs pytest

The stores can be stacked: `CountingStore(FaultyStore(MemoryStore()))` counts what the code under test
asks for, `FaultyStore(CountingStore(MemoryStore()))` what reaches the store.
"""

from reef.testing._clock import ManualClock
from reef.testing._counting import CountingStore, Counts
from reef.testing._faults import Fault, FaultKind, FaultyStore, Fired
from reef.testing._latency import LatencyStore
from reef.testing._wrapper import Operation, WrapperStore

__all__ = [
    "CountingStore",
    "Counts",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "Fired",
    "LatencyStore",
    "ManualClock",
    "Operation",
    "WrapperStore",
]
