"""Whether a store can back a log, shown on the store itself.

StoreCheck   a run of all checks under a prefix of its own
Check        what one of them saw
"""

from reef.store._check._run import (
    RACERS_DEFAULT,
    RACERS_MAX,
    ROUNDS_DEFAULT,
    ROUNDS_MAX,
    Check,
    StoreCheck,
)

__all__ = ["RACERS_DEFAULT", "RACERS_MAX", "ROUNDS_DEFAULT", "ROUNDS_MAX", "Check", "StoreCheck"]
