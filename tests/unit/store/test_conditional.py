"""The loop that decides a conditional PUT: it reports the truth, or that it does not know it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConflictError,
    CorruptError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.settings import Settings
from reef.store import Data, MemoryStore, Store, create
from reef.testing import CountingStore, Fault, FaultKind, FaultyStore, ManualClock, WrapperStore

KEY = "wal/00000000000000000001.wal"
NONCE = bytes(range(200, 216))
OURS = b"head" + NONCE + b"our own object"
PARTS = (OURS[:20], pa.py_buffer(OURS[20:]))
SAME_LENGTH = b"head" + bytes(16) + b"our own object"
THEIRS = b"somebody else's object"
SETTINGS = Settings(cas_max_retries=4)


class Bench(NamedTuple):
    """A memory store, what reaches it, what goes wrong on the way, and the time that passes."""

    inner: MemoryStore
    below: CountingStore
    faults: FaultyStore
    clock: ManualClock

    def create(
        self,
        *,
        data: Data = OURS,
        nonce: bytes = NONCE,
        is_collected: Callable[[], bool] = lambda: False,
        settings: Settings = SETTINGS,
        seed: int = 1,
        store: Store | None = None,
    ) -> None:
        create(
            store or self.faults,
            KEY,
            data,
            nonce=nonce,
            is_collected=is_collected,
            settings=settings,
            clock=self.clock,
            rng=random.Random(seed),
        )

    def holds(self) -> bytes | None:
        return next((self.inner.get(meta.key) for meta in self.inner.list()), None)


@pytest.fixture
def bench() -> Bench:
    inner = MemoryStore()
    below = CountingStore(inner)
    return Bench(inner, below, FaultyStore(below), ManualClock())


def outcome(call: Callable[[], None]) -> type[ReefError] | None:
    try:
        call()
    except ReefError as error:
        return type(error)
    return None


# One attempt goes wrong: what happened to it, what the loop must say.

DONE: tuple[FaultKind, ...] = ("reply_lost", "error_after", "timeout_after", "false_conflict")
NOT_DONE: tuple[FaultKind, ...] = ("error_before", "timeout_before", "conflict")
AT_KEY = {"nothing": None, "theirs": THEIRS, "same length": SAME_LENGTH, "empty": b""}


@pytest.mark.parametrize("at_key", AT_KEY)
@pytest.mark.parametrize("kind", [None, *DONE, *NOT_DONE])
@pytest.mark.parametrize("data", [OURS, PARTS], ids=["whole", "parts"])
def test_one_fault_does_not_change_the_truth(
    bench: Bench, data: Data, kind: FaultKind | None, at_key: str
) -> None:
    there = AT_KEY[at_key]
    if there is not None:
        bench.inner.put_if_absent(KEY, there)
    if kind is not None:
        bench.faults.arm(Fault(kind, on="put_if_absent"))
    if there is None:
        bench.create(data=data)
        assert bench.holds() == OURS
    else:
        with pytest.raises(ConflictError) as caught:
            bench.create(data=data)
        assert caught.value.found == there
        assert bench.holds() == there
    successes = 1 if there is None else 0
    assert_written_at_most(bench, successes)


def assert_written_at_most(bench: Bench, times: int) -> None:
    """Check that nothing was created twice, and that nothing was ever deleted or overwritten."""
    assert set(bench.below.counts.requests) <= {"put_if_absent", "get"}
    sent = bench.below.counts.bytes.get("put_if_absent", 0)
    assert sent == bench.below.counts.requests.get("put_if_absent", 0) * len(OURS)
    assert len(list(bench.inner.list())) <= max(times, 1)


PUT_FAULTS: tuple[FaultKind | None, ...] = (None, *DONE, *NOT_DONE, "denied")
GET_FAULTS: tuple[FaultKind | None, ...] = (
    *(None, "error_before", "timeout_before", "denied"),
    *("not_found", "short_read", "flipped_bit"),
)
COLLECTED = {"no": lambda: False, "yes": lambda: True, "no answer": None}


@pytest.mark.parametrize("collected", COLLECTED)
@pytest.mark.parametrize("at_key", ["nothing", "theirs", "same length"])
@pytest.mark.parametrize("reads", [1, 2])
def test_every_combination_of_put_read_back_and_boundary_is_the_truth_or_unknown(
    at_key: str, collected: str, reads: int
) -> None:
    """Two attempts' faults, the read-back's, what is there, and what the boundary says."""
    for put1, put2, read in itertools.product(PUT_FAULTS, PUT_FAULTS, GET_FAULTS):
        inner = MemoryStore()
        below = CountingStore(inner)
        faults = FaultyStore(below)
        bench = Bench(inner, below, faults, ManualClock())
        there = AT_KEY[at_key]
        if there is not None:
            inner.put_if_absent(KEY, there)
        for kind in (put1, put2):
            if kind is not None:
                faults.arm(Fault(kind, on="put_if_absent"))
        if read is not None:
            faults.arm(Fault(read, on="get", times=reads))
        said = outcome(lambda: bench.create(is_collected=asker(collected)))  # noqa: B023
        check_truth(bench, there, said, (put1, put2, read, collected))
        assert below.counts.requests.get("put_if_absent", 0) <= SETTINGS.cas_max_retries + 1


def asker(collected: str) -> Callable[[], bool]:
    def ask() -> bool:
        answer = COLLECTED[collected]
        if answer is None:
            raise UnavailableError("the head could not be read")
        return answer()

    return ask


def check_truth(
    bench: Bench, there: bytes | None, said: type[ReefError] | None, case: object
) -> None:
    held = bench.holds()
    assert held == (OURS if there is None and held is not None else there), case
    if said is None:
        assert held == OURS, case
    elif said is ConflictError:
        assert there is not None, case
        assert held == there, case
    elif said is AccessDeniedError:  # "nothing was done": so nothing may have been
        assert held == there, case
    else:
        assert said in (OutcomeUnknownError, CorruptError), case


# The rules, one by one.


def test_success_takes_one_request(bench: Bench) -> None:
    bench.create()
    assert bench.below.counts.requests == {"put_if_absent": 1}
    assert bench.clock.sleeps == ()


@pytest.mark.parametrize("kind", DONE)
def test_a_lost_reply_takes_one_read_back_and_no_second_put(bench: Bench, kind: FaultKind) -> None:
    bench.faults.arm(Fault(kind, on="put_if_absent"))
    bench.create()
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 1}
    assert bench.clock.sleeps == ()


def test_a_conflict_takes_one_read_back(bench: Bench) -> None:
    bench.inner.put_if_absent(KEY, THEIRS)
    with pytest.raises(ConflictError) as caught:
        bench.create()
    assert caught.value.key == KEY
    assert caught.value.found == THEIRS
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 1}


def test_the_same_bytes_by_another_author_are_a_conflict(bench: Bench) -> None:
    """Two openers write the same manifest but for the nonce: both would believe they won."""
    other = OURS.replace(NONCE, bytes(reversed(NONCE)))
    bench.inner.put_if_absent(KEY, other)
    with pytest.raises(ConflictError) as caught:
        bench.create()
    assert caught.value.found == other


@pytest.mark.parametrize(
    ("data", "nonce"), [(b"no nonce here", NONCE), (OURS, b""), (b"", NONCE), (NONCE[:15], NONCE)]
)
def test_an_object_without_its_authors_nonce_is_never_sent(
    bench: Bench, data: bytes, nonce: bytes
) -> None:
    with pytest.raises(InvariantError, match="nonce"):
        bench.create(data=data, nonce=nonce)
    assert bench.below.counts.total == 0


@pytest.mark.parametrize("kind", ["error_before", "timeout_before", "conflict"])
@pytest.mark.parametrize("retries", [0, 1, 7])
def test_retries_are_bounded(bench: Bench, kind: FaultKind, retries: int) -> None:
    bench.faults.arm(Fault(kind, on="put_if_absent", times=0))
    with pytest.raises(OutcomeUnknownError, match=f"after {retries} retries, at last: .*{kind}"):
        bench.create(settings=Settings(cas_max_retries=retries))
    assert len(bench.faults.fired) == retries + 1
    assert len(bench.clock.sleeps) == retries
    assert bench.holds() is None


def test_backoff_doubles_up_to_its_bound_with_full_jitter(bench: Bench) -> None:
    bench.faults.arm(Fault("error_before", on="put_if_absent", times=0))
    settings = Settings(cas_max_retries=9, cas_backoff=(0.010, 0.500))
    bounds = [0.010, 0.020, 0.040, 0.080, 0.160, 0.320, 0.5, 0.5, 0.5]
    waits: list[list[float]] = [[] for _ in bounds]
    for seed in range(200):
        clock = ManualClock()
        with pytest.raises(OutcomeUnknownError):
            bench._replace(clock=clock).create(settings=settings, seed=seed)
        for i, slept in enumerate(clock.sleeps):
            waits[i].append(slept)
    for bound, times in zip(bounds, waits, strict=True):
        assert len(set(times)) == 200  # no two clients in step
        assert 0 <= min(times) < bound * 0.1
        assert bound * 0.9 < max(times) <= bound


@pytest.mark.parametrize("backoff", [(0.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_backoff_at_its_edges(bench: Bench, backoff: tuple[float, float]) -> None:
    bench.faults.arm(Fault("error_before", on="put_if_absent", times=0))
    with pytest.raises(OutcomeUnknownError):
        bench.create(settings=Settings(cas_max_retries=1000, cas_backoff=backoff))
    assert len(bench.clock.sleeps) == 1000
    assert max(bench.clock.sleeps) <= backoff[1]


def test_the_read_back_failing_is_unknown_at_once(bench: Bench) -> None:
    bench.faults.arm(Fault("reply_lost", on="put_if_absent"), Fault("error_before", on="get"))
    with pytest.raises(OutcomeUnknownError, match="reading it back failed") as caught:
        bench.create()
    assert caught.value.key == KEY
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert bench.below.counts.requests == {"put_if_absent": 1}
    assert bench.holds() == OURS  # nothing is cleaned up


@pytest.mark.parametrize("first", [*DONE, "timeout_before"])
def test_a_refusal_after_an_ambiguous_attempt_is_unknown(bench: Bench, first: FaultKind) -> None:
    """A 403 says that this attempt did nothing; the one before may be carried out yet."""
    bench.faults.arm(
        Fault(first, on="put_if_absent"),
        Fault("denied", on="put_if_absent"),
        Fault("not_found", on="get", times=0),
    )
    with pytest.raises(OutcomeUnknownError, match="403"):
        bench.create()


def test_a_refusal_at_the_first_attempt_is_the_stores_own_error(bench: Bench) -> None:
    bench.faults.arm(Fault("denied", on="put_if_absent"))
    with pytest.raises(AccessDeniedError):
        bench.create()
    assert bench.below.counts.total == 0


class Raising(WrapperStore):
    """Raises these at one attempt after the other, and then does what it is asked."""

    def __init__(self, inner: Store, *errors: ReefError) -> None:
        super().__init__(inner)
        self.left = list(errors)

    def put_if_absent(self, key: str, data: object) -> None:
        if self.left:
            raise self.left.pop(0)
        self.inner.put_if_absent(key, data)  # type: ignore[arg-type]


DEFINITE = [
    NotFoundError("404 NoSuchKey"),
    NotWrittenError("disk full"),
    AccessDeniedError("403"),
    IncompleteError(KEY, 0, "this", "that"),
    InvariantError("a bug"),
]


@pytest.mark.parametrize("error", DEFINITE, ids=lambda error: type(error).__name__)
def test_a_definite_error_is_told_as_it_is_and_not_repeated(bench: Bench, error: ReefError) -> None:
    store = Raising(bench.below, error)
    with pytest.raises(type(error)) as caught:
        bench.create(store=store)
    assert caught.value is error
    assert bench.below.counts.total == 0
    assert bench.clock.sleeps == ()
    bench.create(store=store)  # to try again is up to the caller
    assert bench.holds() == OURS


@pytest.mark.parametrize("error", DEFINITE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("first", [UnavailableError("no reply"), AlreadyExistsError("409")])
def test_any_error_after_an_open_attempt_is_unknown(
    bench: Bench, first: ReefError, error: ReefError
) -> None:
    with pytest.raises(OutcomeUnknownError) as caught:
        bench.create(store=Raising(bench.below, first, error))
    assert caught.value.__cause__ is error
    assert str(error) in caught.value.why
    assert bench.below.counts.requests == {"get": 1}


@pytest.mark.parametrize("error", [BucketNotFoundError, InvalidInputError])
def test_every_refusal_of_the_input_passes_through(
    bench: Bench, error: type[InvalidInputError]
) -> None:
    class Refusing(FaultyStore):
        def put_if_absent(self, key: str, data: object) -> None:
            raise error("no")

    with pytest.raises(error):
        bench.create(store=Refusing(bench.below))
    assert bench.below.counts.total == 0


def test_an_unknown_outcome_of_the_store_passes_through(bench: Bench) -> None:
    class Unknowing(FaultyStore):
        def put_if_absent(self, key: str, data: object) -> None:
            raise OutcomeUnknownError(key, "fsync failed")

    with pytest.raises(OutcomeUnknownError, match="fsync failed"):
        bench.create(store=Unknowing(bench.below))
    assert bench.below.counts.total == 0


# Put-if-absent forgets deleted names.


def test_refused_and_absent_below_the_boundary_is_unknown(bench: Bench) -> None:
    """It may have been created, or taken, and collected since: creating it again would be wrong."""
    bench.faults.arm(Fault("conflict", on="put_if_absent"))
    with pytest.raises(OutcomeUnknownError, match="collected"):
        bench.create(is_collected=lambda: True)
    assert bench.below.counts.requests == {"get": 1}
    assert bench.holds() is None


def test_refused_and_absent_above_the_boundary_is_tried_again(bench: Bench) -> None:
    bench.faults.arm(Fault("conflict", on="put_if_absent", times=3))
    asked = []
    bench.create(is_collected=lambda: bool(asked.append(1)))
    assert len(asked) == 3
    assert bench.holds() == OURS
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 3}


def test_the_boundary_is_asked_only_after_a_refusal(bench: Bench) -> None:
    def never() -> bool:
        raise AssertionError("asked")

    bench.faults.arm(Fault("timeout_before", on="put_if_absent"))
    bench.create(is_collected=never)
    assert bench.holds() == OURS


def test_a_boundary_that_cannot_be_read_is_unknown(bench: Bench) -> None:
    bench.faults.arm(Fault("conflict", on="put_if_absent"))
    with pytest.raises(OutcomeUnknownError, match="manifest could not be read"):
        bench.create(is_collected=asker("no answer"))
    assert bench.holds() is None


# Late and damaged.


def test_an_attempt_that_lands_late_meets_its_own_object(bench: Bench) -> None:
    bench.faults.arm(Fault("lands_late", on="put_if_absent"))
    bench.create()
    assert bench.holds() == OURS
    (late,) = bench.faults.land()
    assert late is not None
    assert bench.holds() == OURS


def test_an_attempt_that_lands_late_behind_another_author_is_a_conflict(bench: Bench) -> None:
    bench.faults.arm(Fault("lands_late", on="put_if_absent"))

    class Overtaken(CountingStore):
        def get(self, key: str) -> bytes:
            bench.inner.put("elsewhere", b"")
            if not any(meta.key == KEY for meta in bench.inner.list()):
                bench.inner.put_if_absent(KEY, THEIRS)
            return super().get(key)

    with pytest.raises(ConflictError):
        bench.create(store=Overtaken(bench.faults))
    assert bench.faults.land()[0] is not None
    assert bench.inner.get(KEY) == THEIRS


@pytest.mark.parametrize("at", [0, 8 * 4, 8 * 10 + 3, 8 * (len(OURS) - 1)])
@pytest.mark.parametrize("kind", ["reply_lost", "false_conflict"])
def test_ones_own_object_damaged_on_the_way_is_read_again(
    bench: Bench, kind: FaultKind, at: int
) -> None:
    """Whichever bit is wrong, also one of the nonce: it is no conflict."""
    bench.faults.arm(Fault(kind, on="put_if_absent"), Fault("flipped_bit", on="get", at=at))
    bench.create()
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 2}


def test_ones_own_object_cut_short_on_the_way_is_read_again(bench: Bench) -> None:
    bench.faults.arm(Fault("reply_lost", on="put_if_absent"), Fault("short_read", on="get"))
    bench.create()
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 2}


def test_ones_own_object_damaged_twice_is_corrupt(bench: Bench) -> None:
    bench.faults.arm(
        Fault("reply_lost", on="put_if_absent"), Fault("flipped_bit", on="get", at=0, times=2)
    )
    with pytest.raises(CorruptError) as caught:
        bench.create()
    assert caught.value.key == KEY
    assert bench.below.counts.requests == {"put_if_absent": 1, "get": 2}
    assert bench.holds() == OURS


def test_ones_own_object_cut_short_twice_is_corrupt(bench: Bench) -> None:
    bench.faults.arm(
        Fault("reply_lost", on="put_if_absent"), Fault("short_read", on="get", times=2)
    )
    with pytest.raises(CorruptError):
        bench.create()


def test_a_cut_that_the_store_noticed_is_asked_for_again(bench: Bench) -> None:
    class Cutting(WrapperStore):
        cuts = 1

        def get(self, key: str) -> bytes:
            if self.cuts:
                self.cuts -= 1
                raise IncompleteError(key, 3, "many bytes", "3")
            return super().get(key)

    bench.faults.arm(Fault("reply_lost", on="put_if_absent", times=2))
    store = Cutting(bench.faults)
    bench.create(store=store)
    bench.inner.delete(KEY)
    store.cuts = 2
    with pytest.raises(OutcomeUnknownError, match="reading it back failed"):
        bench.create(store=store)


def test_two_readings_that_differ_decide_nothing(bench: Bench) -> None:
    """Our own nonce, wrong in another bit each time, is nobody's."""
    bench.faults.arm(
        Fault("reply_lost", on="put_if_absent"),
        Fault("flipped_bit", on="get", at=8 * 5),
        Fault("flipped_bit", on="get", at=8 * 6),
    )
    with pytest.raises(OutcomeUnknownError, match="differ"):
        bench.create()


def test_anothers_object_of_another_length_is_read_once(bench: Bench) -> None:
    bench.inner.put_if_absent(KEY, THEIRS)
    with pytest.raises(ConflictError):
        bench.create()
    assert bench.below.counts.requests["get"] == 1


def test_there_and_then_gone_is_unknown(bench: Bench) -> None:
    """Damaged at the first reading, collected before the second: creating it again is wrong."""
    bench.faults.arm(
        Fault("reply_lost", on="put_if_absent"),
        Fault("flipped_bit", on="get"),
        Fault("not_found", on="get"),
    )
    with pytest.raises(OutcomeUnknownError, match="then it was not"):
        bench.create()
    assert bench.below.counts.requests["put_if_absent"] == 1


def test_what_is_unknown_can_be_carried_to_another_process(bench: Bench) -> None:
    import pickle

    bench.inner.put_if_absent(KEY, THEIRS)
    with pytest.raises(ConflictError) as caught:
        bench.create()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.key, again.found, str(again)) == (KEY, THEIRS, str(caught.value))
    unknown = pickle.loads(pickle.dumps(OutcomeUnknownError(KEY, "why")))
    assert (unknown.key, unknown.why) == (KEY, "why")
