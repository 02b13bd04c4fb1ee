"""One function for each thing that a log asks of its store, the races aside.

Each returns what it saw, in words, and raises ViolationError if that is not what a log needs.
"""

from __future__ import annotations

import itertools
import statistics

from reef.errors import (
    AlreadyExistsError,
    ConflictError,
    IncompleteError,
    NotFoundError,
    UnavailableError,
)
from reef.store._check._probe import Probe, ViolationError, must_raise, require

_BODY_BYTES = (1 << 20) + 17
_PART_BYTES = 1 << 20
_PARTS = 9  # past the default size of a part
_REPEATS = 10
_SAMPLES = 15
_TICK_SECONDS = 1.1  # S3 counts whole seconds
_BACK_US_MAX = 1_000_000  # the servers of one service have clocks of their own
_KERNEL_TICK_US = 10_000  # file systems stamp with a clock that lags by a tick
# In byte order: "-" and "." sort below "/", digits and letters above it.
_NAMES = ("-", "0", "00", "10", "9", "A", "B-1", "B.1", "B/1", "B/2/x", "B/3", "B0", "B_", "Z", "a")


def create_one(probe: Probe) -> str:
    """A new name can be created, and holds what was written."""
    key = probe.key("create")
    data = probe.put_timed(key)
    require(probe.store.get(key) == data, "the object does not hold what was written")
    return "created, and read back"


def refuse_taken_name(probe: Probe) -> str:
    """A name that is taken is refused, and keeps its bytes."""
    key = probe.key("taken")
    data = probe.put(key)
    refused = 0
    for _ in range(_REPEATS):
        try:
            probe.store.put_if_absent(key, probe.rng.randbytes(len(data)))
        except AlreadyExistsError:
            refused += 1
        except UnavailableError:
            continue  # no answer is no acceptance
        else:
            raise ViolationError(
                "a second conditional PUT of one name was accepted: "
                "the store, or a proxy before it, ignores If-None-Match; "
                "use another store, or cas=two-phase"
            )
    try:
        probe.put(key)
    except ConflictError as conflict:
        require(conflict.found == data, "the object does not hold the first bytes any more")
    else:
        raise ViolationError("creating the same name again succeeded")
    return f"refused {refused + 1} times, and the first bytes stay"


def create_after_delete(probe: Probe) -> str:
    """A name is free again after its object was deleted."""
    key = probe.key("again")
    for _ in range(_REPEATS):
        data = probe.put(key)
        require(probe.store.get(key) == data, "the object holds what was there before")
        probe.store.delete(key)
    return f"{_REPEATS} times created and deleted"


def read_whole(probe: Probe) -> str:
    """An object comes back as it was written, small or large."""
    for size in (16, _BODY_BYTES):
        key = probe.key(f"whole-{size}")
        data = probe.put(key, size)
        require(probe.store.get(key) == data, f"{size} bytes came back different")
        found = probe.store.head(key).size
        require(found == size, f"HEAD says {found} bytes of {size}")
    return f"16 and {_BODY_BYTES} bytes"


def read_ranges(probe: Probe) -> str:
    """A range is exactly what was asked for, or an error."""
    key = probe.key("range")
    data = probe.put(key, _BODY_BYTES)
    end = len(data)
    for start, length in ((0, 1), (0, end), (1, 7), (end // 2, 65536), (end - 1, 1)):
        got = probe.store.get_range(key, start, length)
        require(got == data[start : start + length], f"bytes {start}+{length} came back different")
    for start, length in ((end - 5, 10), (end, 1), (end + 5, 10)):
        with must_raise(IncompleteError, f"bytes {start}+{length} of {end} were served"):
            probe.store.get_range(key, start, length)
    with must_raise(NotFoundError, "a range of an object that is not there was served"):
        probe.store.get_range(probe.prefix + "nothing", 0, 1)
    return "first, last, middle, all, and none past the end"


def read_several_ranges(probe: Probe) -> str:
    """Several ranges of one object come back in the order asked."""
    key = probe.key("ranges")
    data = probe.put(key, _BODY_BYTES)
    ranges = [(900_000, 100), (0, 10), (5, 10), (20, 1), (500_000, 4096), (len(data) - 1, 1)]
    got = probe.store.get_ranges(key, ranges)
    expected = [data[start : start + length] for start, length in ranges]
    require(list(got) == expected, "the bytes of a range came back different")
    return f"{len(ranges)}, near and far, in any order"


def upload_in_parts(probe: Probe) -> str:
    """A large object goes up in parts and is whole afterwards."""
    key = probe.key("upload")
    part = probe.rng.randbytes(_PART_BYTES)
    probe.store.upload(key, (part for _ in range(_PARTS)))
    size, expected = probe.store.head(key).size, _PARTS * _PART_BYTES
    require(size == expected, f"{size} of {expected} bytes are there")
    require(probe.store.get(key) == part * _PARTS, "the parts came back different")
    return f"{_PARTS} MiB"


def read_after_write(probe: Probe) -> str:
    """An object is seen by every request as soon as it was created."""
    for i in range(_REPEATS):
        key = probe.key(f"fresh/{i}")
        # A reader asks for the next log object until it is there: this "no" must not stick.
        with must_raise(NotFoundError, "an object was served before it was written"):
            probe.store.get(key)
        try:
            data = probe.put_timed(key)
            found = probe.store.get(key)
        except NotFoundError:
            raise ViolationError("an object is not found right after it was written") from None
        require(found == data, "another state than the last one written is served")
        require(str(i) in probe.listed("fresh/"), "an object is not listed right after its write")
    return f"{_REPEATS} objects, by GET, HEAD and LIST"


def gone_after_delete(probe: Probe) -> str:
    """An object is seen by no request once it was deleted."""
    for i in range(_REPEATS):
        key = probe.key(f"fresh/{i}")
        probe.store.delete(key)
        with must_raise(NotFoundError, "a deleted object is served by GET"):
            probe.store.get(key)
        with must_raise(NotFoundError, "a deleted object is served by HEAD"):
            probe.store.head(key)
        require(str(i) not in probe.listed("fresh/"), "a deleted object is still listed")
        probe.store.delete(key)  # what is not there can be deleted
    return f"{_REPEATS} objects, by GET, HEAD and LIST; deleting twice is fine"


def list_in_order(probe: Probe) -> str:
    """LIST gives every key of a folder once, in byte order."""
    for name in probe.rng.sample(_NAMES, len(_NAMES)):
        probe.put(probe.key(f"list/{name}"))
    listed = probe.listed("list/")
    require(sorted(listed) == list(_NAMES), f"{len(listed)} keys of {len(_NAMES)}, or others")
    require(listed == list(_NAMES), f"out of order: {' '.join(listed)}")
    folder = probe.listed("list/B/")
    require(folder == ["1", "2/x", "3"], f"the folder B/ lists {' '.join(folder) or 'nothing'}")
    return f"{len(listed)} keys in byte order"


def list_start_after(probe: Probe) -> str:
    """LIST can start after any key, whether that exists or not."""
    starts = (*_NAMES, "5", "B", "B/2", "B/9", "b")
    for start in starts:
        listed = probe.listed("list/", start)
        expected = [name for name in _NAMES if name > start]
        require(listed == expected, f"after {start!r} comes {' '.join(listed) or 'nothing'}")
    return f"{len(starts)} places to start at"


def last_modified(probe: Probe) -> str:
    """Every object has a time, the same in HEAD and LIST, and it moves forward."""
    probe.clock.sleep(max(0.0, probe.begun + _TICK_SECONDS - probe.clock.monotonic()))
    key = probe.key("later/1")
    probe.put_timed(key)
    times = [stamp.modified_us for stamp in probe.stamps]
    require(min(times) > 0, "an object has no Last-Modified")
    (listed,) = probe.store.list(probe.prefix + "later/")
    apart = abs(listed.last_modified_us - times[-1])
    require(apart < 1_000_000, f"HEAD and LIST give times {apart / 1e6:.3f} s apart")
    back = max((a - b for a, b in itertools.pairwise(times)), default=0)
    require(back <= _BACK_US_MAX, f"it went back by {back / 1e6:.3f} s")
    require(times[-1] > times[0], f"it stands still: no later after {_TICK_SECONDS} s")
    return f"moved forward by {(times[-1] - times[0]) / 1e6:.3f} s in this run"


def clock_offset(probe: Probe) -> str:
    """How far the store's clock is from ours, as narrowly as the objects' times allow."""
    stamps = probe.stamps
    if not stamps:
        return "not known: no object has a time"
    grain = next(g for g in (1_000_000, 1000, 1) if all(s.modified_us % g == 0 for s in stamps))
    low = max(s.modified_us - s.after_us for s in stamps)
    high = min(s.modified_us + grain - s.before_us for s in stamps)
    if low > high + _KERNEL_TICK_US:
        return "not known: one of the clocks was set during the run"
    return f"{(low + high) / 2e6:+.3f} s from ours, give or take {abs(high - low) / 2e6:.3f} s"


def latency(probe: Probe) -> str:
    """How long one PUT and one GET take, in the middle."""
    data = probe.rng.randbytes(1024)
    puts, gets = [], []
    for i in range(_SAMPLES):
        key = probe.key(f"latency/{i}")
        begun = probe.clock.monotonic()
        probe.store.put_if_absent(key, data)
        written = probe.clock.monotonic()
        probe.store.get(key)
        puts.append(written - begun)
        gets.append(probe.clock.monotonic() - written)
    put_ms, get_ms = (1000 * statistics.median(times) for times in (puts, gets))
    return f"put 1 KiB {put_ms:.3g} ms, get {get_ms:.3g} ms (p50 of {_SAMPLES})"
