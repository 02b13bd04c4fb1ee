"""Wrappers around any store, for tests of what is built on one.

CountingStore   counts requests and bytes
LatencyStore    makes requests wait, on a clock that the test owns
FaultyStore     loses replies, stalls, refuses, damages and forgets, by plan or by chance
ManualClock     a clock that moves only when it is slept on
Simulation      processes on one bucket in any interleaving and with any fault, by seed, again and again

The stores can be stacked: `CountingStore(FaultyStore(MemoryStore()))` counts what the code under test
asks for, `FaultyStore(CountingStore(MemoryStore()))` what reaches the store.
"""

from reef.testing._clock import ManualClock
from reef.testing._counting import CountingStore, Counts
from reef.testing._faults import Fault, FaultKind, FaultyStore, Fired
from reef.testing._latency import LatencyStore
from reef.testing._network import Network, SimulatedFault
from reef.testing._process import Process, SimulatedClock
from reef.testing._scheduler import Actor, SimulatedCrash, SimulationError
from reef.testing._simulated_store import InFlight, SimulatedStore
from reef.testing._simulated_threads import SimulatedThreads
from reef.testing._simulation import Simulation
from reef.testing._trace import Traced
from reef.testing._wrapper import Operation, WrapperStore

__all__ = [
    "Actor",
    "CountingStore",
    "Counts",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "Fired",
    "InFlight",
    "LatencyStore",
    "ManualClock",
    "Network",
    "Operation",
    "Process",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedFault",
    "SimulatedStore",
    "SimulatedThreads",
    "Simulation",
    "SimulationError",
    "Traced",
    "WrapperStore",
]
