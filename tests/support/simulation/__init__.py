"""Processes on one bucket, in any interleaving and with any fault, by seed, again and again.

Simulation          the seeded scheduler, which begins at EPOCH_US; Process is a simulated process, Actor
                    a thread of one
Network, Traced     what is between processes and the store; what happened, as text
SimulatedStore      the store as a simulated process sees it; also a clock and threads of its own
"""

from tests.support.simulation._network import Network, SimulatedFault
from tests.support.simulation._process import Process, SimulatedClock
from tests.support.simulation._scheduler import Actor, SimulatedCrash, SimulationError
from tests.support.simulation._simulated_store import InFlight, SimulatedStore
from tests.support.simulation._simulated_threads import SimulatedThreads
from tests.support.simulation._simulation import EPOCH_US, Simulation
from tests.support.simulation._trace import Traced

__all__ = [
    "EPOCH_US",
    "Actor",
    "InFlight",
    "Network",
    "Process",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedFault",
    "SimulatedStore",
    "SimulatedThreads",
    "Simulation",
    "SimulationError",
    "Traced",
]
