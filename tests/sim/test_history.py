"""The oracle itself: it accepts what a correct engine can do, and rejects each thing that none can."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from reef.errors import (
    ConditionFailedError,
    CorruptError,
    FencedError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from tests.support.engine.write_history import (
    EVERYTHING,
    Version,
    Violation,
    Write,
    WriteHistory,
    check_replay,
)
from tests.support.simulation import Simulation

FENCED = FencedError("another writer")
LOST = OutcomeUnknownError("wal/1", "no reply")


class Truth:
    """What a namespace really holds: a serial engine to take right histories from, and to spoil."""

    def __init__(self) -> None:
        self.states: dict[int, dict[bytes, Version]] = {0: {}}

    @property
    def lsn(self) -> int:
        return max(self.states)

    def commit(self, write: Write, lsn: int | None = None) -> int:
        lsn = self.lsn + 1 if lsn is None else lsn
        rows = {k: v for k, v in self.states[self.lsn].items() if k not in write.deletes}
        rows |= {key: Version(lsn, value) for key, value in write.puts.items()}
        self.states[lsn] = rows
        return lsn

    def at(self, lsn: int) -> dict[bytes, Version]:
        return self.states[max(n for n in self.states if n <= lsn)]

    def values(self, lsn: int, *keys: bytes) -> dict[bytes, bytes | None]:
        rows = self.at(lsn)
        return {key: rows[key].value if key in rows else None for key in keys or rows}

    def check(self, history: WriteHistory) -> int:
        return history.check(self.lsn, self.at(self.lsn), at=self.at)


@pytest.fixture
def history() -> WriteHistory:
    return WriteHistory()


@pytest.fixture
def truth() -> Truth:
    return Truth()


def write(
    history: WriteHistory,
    truth: Truth,
    puts: Mapping[bytes, bytes],
    deletes: tuple[bytes, ...] = (),
    **options: Mapping[bytes, bytes | None],
) -> Write:
    """Do a write that goes well."""
    return history.attempt("w", truth.commit, puts, deletes, **options)


# Right histories


def test_acked_writes_reads_and_deletes_fit(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1", b"b": b"1"})
    history.record_read("r", 1, {b"a": b"1", b"b": b"1", b"c": None})
    write(history, truth, {b"a": b"2"}, (b"b",))
    history.record_read("r", 2, truth.values(2), span=EVERYTHING)
    history.record_read("r", None, {b"a": b"2", b"b": None})
    history.record_read("old view", 1, {b"b": b"1"})
    assert truth.check(history) == 2
    assert history.acked_lsn() == history.acked_lsn("w") == 2
    assert history.acked_lsn("nobody") == 0


@pytest.mark.parametrize("happened", [False, True])
def test_an_unknown_write_may_be_there_or_not(
    history: WriteHistory, truth: Truth, happened: bool
) -> None:
    def send(write: Write) -> int:
        if happened:
            truth.commit(write)
        raise LOST

    unknown = history.attempt("w", send, {b"a": b"1", b"b": b"1"})
    unanswered = history.record_invoked("killed", {b"a": b"2"})
    if happened:
        truth.commit(unanswered)
    assert unknown.fate == unanswered.fate == "unknown"
    assert truth.check(history) == 2 * happened


def test_a_retry_of_the_same_write_counts_once(history: WriteHistory, truth: Truth) -> None:
    def send(write: Write) -> int:
        truth.commit(write)
        raise LOST

    retried = history.attempt("w", send, {b"a": b"1"})
    history.retry(retried, lambda _: 1)  # the original receipt
    assert retried.fate == "acked"
    assert truth.check(history) == 1


def test_a_write_that_failed_can_be_tried_again(history: WriteHistory, truth: Truth) -> None:
    def refuse(_: Write) -> int:
        raise NotWrittenError("full")

    refused = history.attempt("w", refuse, {b"a": b"1"})
    assert refused.fate == "failed"
    assert truth.check(history) == 0
    history.retry(refused, truth.commit)
    assert refused.fate == "acked"
    assert truth.check(history) == 1


def test_each_error_is_taken_for_what_it_says(history: WriteHistory) -> None:
    def fate(error: Exception) -> str:
        def send(_: Write) -> int:
            raise error

        return history.attempt("w", send, {}).fate

    assert fate(FENCED) == "failed"
    assert fate(NotWrittenError("full")) == "failed"
    assert fate(ConditionFailedError("no", ("exists",))) == "failed"
    assert fate(LOST) == "unknown"
    assert fate(UnavailableError("500")) == "unknown"
    with pytest.raises(CorruptError):
        fate(CorruptError("wal/1", 0, "a", "b"))


def test_what_retention_refuses_is_not_compared(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"a": b"2"})
    asked = []

    def at(lsn: int) -> dict[bytes, Version] | None:
        asked.append(lsn)
        return None if lsn < 2 else truth.at(lsn)

    assert history.check(truth.lsn, truth.at(truth.lsn), at=at) == 2
    assert asked == [0, 1, 2]


def test_a_late_write_above_an_earlier_check_is_fine(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    late = history.record_invoked("w", {b"a": b"2"})
    assert truth.check(history) == 1
    truth.commit(late)
    assert truth.check(history) == 2


# Wrong ones


def spoiled(history: WriteHistory, truth: Truth, match: str) -> None:
    with pytest.raises(Violation, match=match):
        truth.check(history)


def test_an_acked_write_that_is_lost(history: WriteHistory, truth: Truth) -> None:
    history.attempt("w", lambda _: 1, {b"a": b"1"})
    spoiled(history, truth, r"write 1 of w \(acked at 1\) is lost")


def test_an_acked_write_at_another_lsn(history: WriteHistory, truth: Truth) -> None:
    history.attempt("w", lambda w: truth.commit(w) + 1, {b"a": b"1"})
    spoiled(history, truth, r"\(acked at 2\) is visible at 1")


def test_a_failed_write_that_is_there(history: WriteHistory, truth: Truth) -> None:
    def send(write: Write) -> int:
        truth.commit(write)
        raise FENCED

    history.attempt("w", send, {b"a": b"1"})
    spoiled(history, truth, r"\(failed FencedError: another writer\) is visible, at 1")


def test_a_failed_write_that_was_seen_although_it_is_gone(
    history: WriteHistory, truth: Truth
) -> None:
    write(history, truth, {b"a": b"1"})
    failed = history.record_invoked("w", {b"a": b"2"})
    history.record_read("dirty", 1, {b"a": b"2"})
    history.record_failed(failed, FENCED)
    spoiled(history, truth, r"dirty at 1 read b'a' as b'2' of write 2 of w \(failed")


def test_a_failed_write_seen_by_a_read_of_unknown_lsn(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    failed = history.record_invoked("w", {b"a": b"2"})
    history.record_read("dirty", None, {b"a": b"2"})
    history.record_failed(failed, FENCED)
    spoiled(history, truth, "read what never was")


@pytest.mark.parametrize("acked", [True, False])
def test_a_torn_batch_in_the_end(history: WriteHistory, truth: Truth, acked: bool) -> None:
    def send(write: Write) -> int:
        truth.commit(write)
        del truth.states[truth.lsn][b"b"]
        if not acked:
            raise LOST
        return truth.lsn

    history.attempt("w", send, {b"a": b"1", b"b": b"1"})
    spoiled(history, truth, "has b'b' as absent, expected b'1' of write 1")


def test_a_batch_whose_delete_is_missing(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    row = truth.at(1)[b"a"]
    write(history, truth, {b"b": b"2"}, (b"a",))
    truth.states[2][b"a"] = row
    spoiled(history, truth, "has b'a' as b'1' of write 1.* with LSN 1, expected absent")


def test_a_read_of_a_torn_batch(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1", b"b": b"1"})
    write(history, truth, {b"a": b"2", b"b": b"2"})
    history.record_read("r", None, {b"a": b"2", b"b": b"1"})
    spoiled(history, truth, "r at an unknown LSN, not before 0, read what never was")


@pytest.mark.parametrize(
    ("lsn", "rows"),
    [
        (1, {b"a": b"2"}),  # from the future
        (2, {b"a": b"1"}),  # stale
        (2, {b"b": b"1"}),  # deleted, and back
        (2, {b"a": None}),  # missing
        (2, {b"z": b"1"}),  # from nowhere
    ],
)
def test_a_read_that_differs_from_its_version(
    history: WriteHistory, truth: Truth, lsn: int, rows: dict[bytes, bytes | None]
) -> None:
    write(history, truth, {b"a": b"1", b"b": b"1"})
    write(history, truth, {b"a": b"2"}, (b"b",))
    history.record_read("r", lsn, rows)
    spoiled(history, truth, f"r at {lsn} read")


@pytest.mark.parametrize(
    "spoil", [lambda rows: rows.pop(b"b"), lambda rows: rows.update({b"bb": b"?"})]
)
def test_a_scan_with_a_row_too_few_or_too_many(
    history: WriteHistory, truth: Truth, spoil: Callable[[dict[bytes, bytes | None]], object]
) -> None:
    write(history, truth, {b"a": b"1", b"b": b"1", b"c": b"1"})
    rows = truth.values(1, b"b")
    history.record_read("r", 1, rows, span=(b"b", b"c"))
    assert truth.check(history) == 1
    spoil(rows)
    history.record_read("r", 1, rows, span=(b"b", b"c"))
    spoiled(history, truth, "r at 1 read b'b")


def test_a_handle_that_goes_back(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"a": b"2"})
    history.record_read("r", 2, {})
    with pytest.raises(Violation, match="r went back: it read at 1, after 2"):
        history.record_read("r", 1, {})


def test_a_handle_that_goes_back_without_saying_at_which_lsn(
    history: WriteHistory, truth: Truth
) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"a": b"2"})
    history.record_read("r", None, {b"a": b"2"})
    history.record_read("other", None, {b"a": b"1"})
    assert truth.check(history) == 2
    history.record_read("r", None, {b"a": b"1"})
    spoiled(history, truth, "r at an unknown LSN, not before 2")


def test_a_handle_that_names_an_lsn_below_what_it_has_shown(
    history: WriteHistory, truth: Truth
) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"b": b"2"})
    history.record_read("r", None, {b"b": b"2"})
    history.record_read("r", 1, {b"a": b"1"})
    spoiled(history, truth, "went back: what it had read before was of 2")


def test_a_handle_that_does_not_see_what_it_was_told(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    with pytest.raises(Violation, match="went back: it read at 0, after 1"):
        history.record_read("w", 0, {b"a": None}, min_lsn=history.acked_lsn("w"))
    history.record_read("w", None, {b"a": None}, min_lsn=history.acked_lsn("w"))
    spoiled(history, truth, "not before 1, read what never was")


def test_two_writes_acked_at_one_lsn(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    with pytest.raises(Violation, match="shares its LSN"):
        history.attempt("w", lambda _: 1, {b"b": b"1"})


def test_two_writes_visible_at_one_lsn(history: WriteHistory, truth: Truth) -> None:
    first, second = history.record_invoked("w", {}), history.record_invoked("x", {})
    truth.commit(first, 1)
    truth.commit(second, 1)
    truth.states[1][first.marker] = Version(1, b"1")
    spoiled(history, truth, "share the LSN 1")


def test_a_write_acked_below_one_that_was_acked_before(history: WriteHistory, truth: Truth) -> None:
    history.attempt("w", lambda w: truth.commit(w, 5), {b"a": b"1"})
    with pytest.raises(
        Violation, match=r"acked at 4, but write 1 .* was acked before it was asked"
    ):
        history.attempt("x", lambda _: 4, {b"a": b"2"})


def test_an_unknown_write_visible_below_one_acked_before(
    history: WriteHistory, truth: Truth
) -> None:
    unknown = history.record_invoked("w", {b"a": b"0"})
    truth.commit(unknown, 1)
    acked = history.record_invoked("w", {b"a": b"1"})
    history.record_acked(acked, 5)
    late = history.record_invoked("x", {b"b": b"2"})
    truth.commit(late, 4)
    truth.commit(acked, 5)
    spoiled(history, truth, "visible at 4, comes before write 2")


def test_a_retry_that_is_acked_twice_at_different_lsns(history: WriteHistory, truth: Truth) -> None:
    retried = write(history, truth, {b"a": b"1"})
    with pytest.raises(Violation, match="was acked again, at 2"):
        history.retry(retried, truth.commit)


def test_a_retry_that_is_carried_out_twice(history: WriteHistory, truth: Truth) -> None:
    def send(write: Write) -> int:
        truth.commit(write)
        raise LOST

    retried = history.attempt("w", send, {b"a": b"1"})
    history.retry(retried, truth.commit)
    assert history.check(truth.lsn, truth.at(truth.lsn)) == 1, "the last state alone shows nothing"
    spoiled(history, truth, "the state at 1 has b'a' as b'1' of write 1.*, expected absent")


def test_rows_that_nobody_wrote(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    truth.states[1][b"z"] = Version(1, b"?")
    spoiled(history, truth, "has b'z' as .* of nobody with LSN 1, expected absent")


def test_a_row_with_another_row_s_lsn(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"b": b"1"})
    truth.states[2][b"a"] = Version(2, b"1")
    spoiled(history, truth, "with LSN 2, expected .* with LSN 1")


def test_a_row_above_the_version_that_was_read(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    with pytest.raises(Violation, match="the last state, at 0, has"):
        history.check(0, truth.at(1))


@pytest.mark.parametrize(("held", "expected"), [(None, b"1"), (b"1", None), (b"1", b"0")])
def test_a_conditional_write_that_should_have_failed(
    history: WriteHistory, truth: Truth, held: bytes | None, expected: bytes | None
) -> None:
    write(history, truth, {} if held is None else {b"a": held})
    write(history, truth, {b"b": b"2"}, expects={b"a": held})
    assert truth.check(history) == 2
    write(history, truth, {b"b": b"3"}, expects={b"a": expected})
    spoiled(history, truth, "was committed at 3 although b'a' was")


def test_a_write_that_appears_below_what_was_checked(history: WriteHistory, truth: Truth) -> None:
    late = history.record_invoked("w", {b"z": b"1"})
    history.attempt("x", lambda w: truth.commit(w, 5), {b"a": b"2"})
    assert truth.check(history) == 1
    for lsn in (5, 3):
        truth.states[lsn] = {
            **truth.states.get(lsn, {}),
            b"z": Version(3, b"1"),
            late.marker: Version(3, b"1"),
        }
    spoiled(history, truth, "an earlier check at 5 read b'z' as absent")


def test_time_travel_that_differs(history: WriteHistory, truth: Truth) -> None:
    write(history, truth, {b"a": b"1"})
    write(history, truth, {b"a": b"2"})
    truth.states[1] = {k: v for k, v in truth.states[1].items() if k != b"a"}
    spoiled(history, truth, "the state at 1 has b'a' as absent, expected b'1'")


def test_values_that_do_not_tell_who_wrote_them_are_refused(history: WriteHistory) -> None:
    history.record_invoked("w", {b"a": b"1"})
    with pytest.raises(ValueError, match="values are unique"):
        history.record_invoked("w", {b"a": b"1"})
    with pytest.raises(ValueError, match="kept for markers"):
        history.record_invoked("w", {b"~1": b"1"})


# By chance


def random_history(rng: random.Random) -> tuple[WriteHistory, Truth]:
    """Return a right history with everything in it."""
    history, truth = WriteHistory(), Truth()

    def send(write: Write) -> int:
        if rng.random() < 0.2:
            raise FENCED
        lost = rng.random() < 0.3
        if not lost or rng.random() < 0.5:
            truth.commit(write, truth.lsn + rng.randrange(1, 4))
        if lost:
            raise LOST
        return truth.lsn

    keys = [b"%d" % i for i in range(6)]
    for number in range(30):
        some = rng.sample(keys, rng.randrange(1, 4))
        deletes = [key for key in some if rng.random() < 0.3]
        puts = {key: b"v%d" % number for key in some if key not in deletes}
        history.attempt(rng.choice("wx"), send, puts, deletes)
        if rng.random() < 0.5:
            lsn = rng.randrange(truth.lsn + 1)
            known = lsn if rng.random() < 0.5 else None
            history.record_read(f"r{number}", known, truth.values(lsn, *rng.sample(keys, 3)))
        if rng.random() < 0.3:
            history.record_read("follower", truth.lsn, truth.values(truth.lsn), span=EVERYTHING)
    return history, truth


@pytest.mark.parametrize("seed", range(50))
def test_right_histories_pass_and_any_spoiled_row_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    history, truth = random_history(rng)
    committed = truth.check(history)
    assert committed == len(truth.states) - 1 > 0
    lsn = rng.choice([n for n in truth.states if n])
    rows = dict(truth.states[lsn])
    key = rng.choice(sorted(rows))
    spoil = rng.randrange(3)
    if spoil == 0:
        del rows[key]
    elif spoil == 1:
        rows[key] = Version(rows[key].lsn, rows[key].value + b"?")
    else:
        rows[key] = Version(rows[key].lsn - 1, rows[key].value)
    truth.states[lsn] = rows
    with pytest.raises(Violation):
        truth.check(history)


# Replay


def test_a_scenario_that_does_not_repeat_itself_is_found_out() -> None:
    calls = []

    def scenario(seed: int, *, honest: bool) -> Simulation:
        calls.append(seed)
        with Simulation(seed) as sim:
            process = sim.process("p")
            data = b"same" if honest else b"call %d" % len(calls)
            process.start(lambda: process.store.put_if_absent("k", data))
            sim.run()
        return sim

    assert check_replay(lambda seed: scenario(seed, honest=True), 5).steps > 0
    with pytest.raises(Violation, match=r"seed 5 does not repeat itself:\n.*put_if_absent k"):
        check_replay(lambda seed: scenario(seed, honest=False), 5)
