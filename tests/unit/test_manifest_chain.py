"""The manifest chain: one winner for each generation, and nothing counts that nobody will read."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from reef.errors import (
    AccessDeniedError,
    CorruptError,
    FencedError,
    FormatVersionError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import Boundary, Manifest, decode_manifest, manifest_key
from reef.manifest import (
    Head,
    ManifestChain,
    add_snapshot,
    advance_boundary,
    open_compactor,
    open_writer,
    register_intent,
    release_snapshot,
)
from reef.settings import Settings
from reef.store import FileStore, MemoryStore, ObjectMeta, Store
from reef.testing import CountingStore, Fault, FaultKind, FaultyStore, ManualClock, WrapperStore

NAMESPACE = "products"
GRACE_S = 900.0
SETTINGS = Settings(cas_max_retries=4)


def key(generation: int) -> str:
    return manifest_key(NAMESPACE, generation)


def first() -> Manifest:
    return Manifest.first(NAMESPACE, author="nobody", nonce="0" * 32, created_at_us=0)


def opened(head: Head | None) -> Manifest:
    """The change that every test publishes: one more epoch."""
    return open_writer(first() if head is None else head.manifest)


def snapshotted(id: str) -> Callable[[Head | None], Manifest]:
    """Return a change that can be found again."""

    def change(head: Head | None) -> Manifest:
        m = first() if head is None else head.manifest
        return add_snapshot(m, id=id, lsn=0, expires_at_us=0)

    return change


class World:
    """A bucket, what goes wrong on the way to it, and actors that share it."""

    def __init__(self, inner: Store, clock: ManualClock) -> None:
        self.inner = inner
        self.clock = clock
        self.faults = FaultyStore(inner, clock=clock)
        self.store = CountingStore(self.faults)

    def chain(self, author: str = "writer", *, store: Store | None = None) -> ManifestChain:
        return ManifestChain(
            store or self.store,
            NAMESPACE,
            author=author,
            settings=SETTINGS,
            clock=self.clock,
            rng=random.Random(author),
        )

    def grow(self, generations: int) -> None:
        """Let somebody else publish that many."""
        other = self.chain("other", store=self.inner)
        for _ in range(generations):
            other.publish(opened)

    def collect(self, boundary: int) -> None:
        """Do what garbage collection does: record the boundary, then delete below it."""
        collector = self.chain("collector", store=self.inner)

        def change(head: Head | None) -> Manifest:
            assert head is not None
            m = head.manifest
            return advance_boundary(m, Boundary(slot=m.wal_floor, generation=boundary))

        kept = {s.generation for s in collector.publish(change).manifest.snapshots}
        for found in collector.generations():
            if found.number < boundary and found.number not in kept:
                self.inner.delete(key(found.number))

    def damage(self, generation: int) -> None:
        """Flip a bit of a generation where it lies."""
        data = bytearray(self.inner.get(key(generation)))
        data[200] ^= 1
        self.overwrite(generation, bytes(data))

    def overwrite(self, generation: int, data: bytes) -> None:
        self.inner.delete(key(generation))
        self.inner.put_if_absent(key(generation), data)

    def stored(self, generation: int) -> Manifest:
        return decode_manifest(self.inner.get(key(generation)), key=key(generation))

    def numbers(self) -> list[int]:
        return [found.number for found in self.chain(store=self.inner).generations()]


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    inner: Store
    if request.param == "memory":
        inner = MemoryStore(clock=clock)
    else:
        inner = FileStore(tmp_path / "bucket", fsync=False)
    with inner:
        yield World(inner, clock)


class Intruder(WrapperStore):
    """Runs something once, before or after the next request of one kind is carried out."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._before: dict[str, Callable[[], object]] = {}

    def before(self, operation: str, act: Callable[[], object]) -> None:
        self._before[operation] = act

    def _request(self, operation, key, call):  # type: ignore[no-untyped-def]
        act = self._before.pop(operation, None)
        if act is not None:
            act()
        return call()


class TestPublishing:
    def test_nothing_is_there_before_the_first(self, world: World) -> None:
        chain = world.chain()
        assert chain.load() is None
        assert chain.head is None
        assert chain.last_contact is None
        assert dict(world.store.counts.requests) == {"list": 1}

    def test_the_first_generation(self, world: World) -> None:
        chain = world.chain("writer-1")
        head = chain.publish(opened)
        assert head.manifest == world.stored(1)
        assert (head.generation, head.manifest.writer_epoch) == (1, 1)
        assert (head.manifest.author, head.manifest.predecessor_checksum) == ("writer-1", None)
        assert head.manifest.nonce != "0" * 32
        assert head.published_at_us == world.inner.head(key(1)).last_modified_us
        assert chain.head == head

    def test_the_next_ones_name_their_predecessors(self, world: World) -> None:
        chain = world.chain()
        heads = [chain.publish(opened) for _ in range(4)]
        assert [head.generation for head in heads] == [1, 2, 3, 4]
        for before, after in itertools.pairwise(heads):
            assert after.manifest.predecessor_checksum == before.checksum
        assert len({head.manifest.nonce for head in heads}) == 4

    def test_a_publish_on_a_known_head_is_one_put_and_one_list(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.store.reset()
        chain.publish(opened)
        assert dict(world.store.counts.requests) == {"put_if_absent": 1, "list": 1}

    def test_a_load_is_one_list_and_one_get_and_a_known_head_is_not_fetched_again(
        self, world: World
    ) -> None:
        world.grow(3)
        chain = world.chain()
        chain.load()
        assert dict(world.store.reset().requests) == {"list": 1, "get": 1}
        chain.load()
        assert dict(world.store.reset().requests) == {"list": 1}

    def test_what_is_recorded_of_the_new_generation_in_the_first_is_dated_to_it(
        self, world: World
    ) -> None:
        head = world.chain().publish(snapshotted("s"))
        assert [s.generation for s in head.manifest.snapshots] == [1]

    def test_interleaved_chains_build_on_each_other(self, world: World) -> None:
        a, b = world.chain("a"), world.chain("b")
        epochs = [chain.publish(opened).manifest.writer_epoch for chain in (a, b, a, a, b, b, a)]
        assert epochs == [1, 2, 3, 4, 5, 6, 7]
        assert world.numbers() == [1, 2, 3, 4, 5, 6, 7]

    def test_who_is_overtaken_between_reading_and_writing_starts_over_on_the_new_head(
        self, world: World
    ) -> None:
        a, b = world.chain("a"), world.chain("b")
        a.publish(opened)
        seen: list[int] = []

        def change(head: Head | None) -> Manifest:
            assert head is not None
            seen.append(head.generation)
            if len(seen) < 3:
                b.publish(opened)
            return opened(head)

        assert a.publish(change).generation == 4
        assert seen == [1, 2, 3]
        assert world.stored(4).writer_epoch == 4

    def test_two_openers_with_the_same_words_never_both_believe_that_they_won(
        self, world: World
    ) -> None:
        """Same author, same time, same content: only the nonce tells whose object it is."""
        a = world.chain("writer")
        b = world.chain("writer")
        b._rng = random.Random("another seed")
        heads: list[Head] = []

        def change(head: Head | None) -> Manifest:
            if not heads:
                heads.append(b.publish(opened))
            return opened(head)

        heads.append(a.publish(change))
        assert [head.generation for head in heads] == [1, 2]
        assert [head.manifest.writer_epoch for head in heads] == [1, 2]

    def test_no_change_is_no_publish(self, world: World) -> None:
        chain = world.chain()
        head = chain.publish(opened)
        world.store.reset()
        assert chain.publish(lambda head: None) == head
        assert world.store.counts.total == 0

    def test_no_change_of_nothing_has_no_head_to_return(self, world: World) -> None:
        with pytest.raises(NotFoundError, match="products"):
            world.chain().publish(lambda head: None)

    def test_the_author_cannot_be_talked_into_another_number(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        head = chain.publish(
            lambda head: replace(opened(head), generation=77, repaired_from=3, author="else")
        )
        assert (head.generation, head.manifest.repaired_from) == (2, None)
        assert head.manifest.author == "writer"

    def test_a_change_that_breaks_a_rule_is_never_written(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        with pytest.raises(InvariantError, match="writer_epoch"):
            chain.publish(lambda head: replace(opened(head), writer_epoch=0))
        with pytest.raises(InvariantError, match="wal_floor at most wal_last_seen"):
            chain.publish(lambda head: replace(opened(head), wal_floor=9))
        assert world.numbers() == [1]

    def test_a_hundred_lost_races_are_given_up(self, world: World) -> None:
        a, b = world.chain("a"), world.chain("b")

        def change(head: Head | None) -> Manifest:
            b.publish(opened)
            return opened(head)

        with pytest.raises(NotWrittenError, match="100 others"):
            a.publish(change)
        assert world.stored(100).author == "b"
        assert world.numbers() == list(range(1, 101))
        assert len(world.clock.sleeps) == 99
        assert all(pause <= SETTINGS.cas_backoff[1] for pause in world.clock.sleeps)
        assert a.publish(opened).generation == 101

    def test_an_error_of_a_change_on_an_old_head_is_asked_again_on_the_newest(
        self, world: World
    ) -> None:
        a, b = world.chain("a"), world.chain("b")
        a.publish(opened)
        b.publish(snapshotted("s"))

        def release(head: Head | None) -> Manifest:
            assert head is not None
            return release_snapshot(head.manifest, "s")

        assert a.publish(release).generation == 3
        with pytest.raises(NotFoundError, match="no snapshot 's'"):
            a.publish(release)
        assert world.numbers() == [1, 2, 3]

    def test_an_error_of_a_change_comes_out_and_the_chain_stays_usable(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            raise FencedError("no")

        with pytest.raises(FencedError):
            chain.publish(change)
        assert chain.publish(opened).generation == 2

    def test_a_bad_name_is_refused(self, world: World) -> None:
        with pytest.raises(InvalidInputError):
            ManifestChain(
                world.store,
                "../up",
                author="a",
                settings=SETTINGS,
                clock=world.clock,
                rng=random.Random(1),
            )


class TestLostReplies:
    @pytest.mark.parametrize(
        "kind",
        [
            "reply_lost",
            "error_after",
            "timeout_after",
            "false_conflict",
            "conflict",
            "error_before",
            "timeout_before",
        ],
    )
    def test_at_every_put_of_a_run(self, world: World, kind: FaultKind) -> None:
        chain = world.chain()
        for generation in range(1, 6):
            world.faults.arm(Fault(kind, on="put_if_absent"))
            assert chain.publish(snapshotted(f"s{generation}")).generation == generation
        assert len(world.faults.fired) == 5
        assert [s.id for s in world.stored(5).snapshots] == [f"s{n}" for n in range(1, 6)]
        assert world.numbers() == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("kind", ["reply_lost", "timeout_before"])
    def test_an_unknown_outcome_passes_through_and_the_next_publish_looks_first(
        self, world: World, kind: FaultKind
    ) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault(kind, on="put_if_absent"), Fault("error_before", on="get"))
        with pytest.raises(OutcomeUnknownError, match="00000000000000000002"):
            chain.publish(snapshotted("s"))
        assert chain.head is not None
        assert chain.head.generation == 1
        world.store.reset()
        head = chain.publish(opened)
        landed = kind == "reply_lost"
        assert head.generation == (3 if landed else 2)
        assert [s.id for s in head.manifest.snapshots] == (["s"] if landed else [])
        # It asked before it sent: no PUT was refused.
        assert world.store.counts.requests["put_if_absent"] == 1

    def test_a_write_that_lands_late_is_a_generation_like_any_other(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("lands_late", on="put_if_absent"), Fault("error_before", on="get"))
        with pytest.raises(OutcomeUnknownError):
            chain.publish(snapshotted("late"))

        def change(head: Head | None) -> Manifest:
            world.faults.land()
            return opened(head)

        head = chain.publish(change)
        assert head.generation == 3
        assert [s.id for s in head.manifest.snapshots] == ["late"]

    @pytest.mark.parametrize("operation", ["list", "get"])
    def test_a_generation_that_cannot_be_confirmed_is_unknown(
        self, world: World, operation: str
    ) -> None:
        intruder = Intruder(world.faults)
        chain = world.chain("a", store=intruder)
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            intruder.before("list", lambda: world.grow(1))  # so that there is a newer head to GET
            world.faults.arm(Fault("error_before", on=operation))  # type: ignore[arg-type]
            return snapshotted("s")(head)

        with pytest.raises(OutcomeUnknownError, match="could not be read after it"):
            chain.publish(change)
        head = chain.publish(opened)
        assert head.generation == 4
        assert [s.id for s in head.manifest.snapshots] == ["s"]

    def test_a_definite_refusal_comes_out_as_it_is(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("denied", on="put_if_absent"))
        with pytest.raises(AccessDeniedError):
            chain.publish(opened)
        assert chain.publish(opened).generation == 2

    def test_written_but_not_listed_is_unknown(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("missing_entry", on="list", key=key(2)))
        with pytest.raises(OutcomeUnknownError, match="LIST does not show it"):
            chain.publish(opened)
        assert chain.publish(opened).generation == 3

    def test_written_but_not_listed_before_others_is_unknown(self, world: World) -> None:
        intruder = Intruder(world.faults)
        chain = world.chain("a", store=intruder)
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            world.faults.arm(Fault("missing_entry", on="list", key=key(2)))
            intruder.before("list", lambda: world.grow(1))
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="LIST does not show it"):
            chain.publish(change)


class TestSleepers:
    """Put-if-absent forgets deleted names: who slept through a collection has published nothing."""

    def test_a_collected_generation_that_is_created_again_does_not_count(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        chain = world.chain("sleeper")
        chain.publish(opened)
        built_on: list[int] = []

        def change(head: Head | None) -> Manifest:
            assert head is not None
            built_on.append(head.generation)
            if len(built_on) == 1:
                world.grow(10)
                world.collect(boundary=9)
            return snapshotted("mine")(head)

        head = chain.publish(change)
        assert built_on == [1, 12]
        assert head.generation == 13
        assert world.stored(13).writer_epoch == 11
        assert [s.id for s in world.stored(13).snapshots] == ["mine"]
        # The one that did not count lies there until it is collected, and nobody takes it for one.
        assert world.numbers() == [2, 9, 10, 11, 12, 13]
        assert "does not count" in caplog.text
        with pytest.raises(NotFoundError):
            chain.at(2)

    def test_so_it_is_with_the_very_first_generation(self, world: World) -> None:
        chain = world.chain("sleeper")
        heads: list[Head | None] = []

        def change(head: Head | None) -> Manifest:
            heads.append(head)
            if len(heads) == 1:
                world.grow(10)
                world.collect(boundary=9)
            return opened(head)

        assert chain.publish(change).generation == 12
        assert heads[0] is None
        assert world.stored(12).writer_epoch == 11

    def test_at_the_boundary_it_counts(self, world: World) -> None:
        chain = world.chain("slow")
        chain.publish(opened)
        intruder = Intruder(world.store)
        slow = world.chain("slow", store=intruder)
        slow.load()

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.grow(3)
                world.collect(boundary=2)

            intruder.before("list", meanwhile)  # after the PUT, before the head is read
            return snapshotted("mine")(head)

        head = slow.publish(change)
        assert head.generation == 2
        assert slow.head is not None
        assert slow.head.generation == 6
        assert [s.id for s in world.stored(6).snapshots] == ["mine"]

    def test_who_was_collected_before_it_was_confirmed_does_not_know(self, world: World) -> None:
        """It was published, it may have been built upon, and it is gone: neither yes nor no."""
        world.grow(1)
        intruder = Intruder(world.store)
        chain = world.chain("slow", store=intruder)
        chain.load()

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.clock.advance(GRACE_S)
                world.grow(10)
                world.collect(boundary=9)

            intruder.before("list", meanwhile)
            return snapshotted("mine")(head)

        with pytest.raises(OutcomeUnknownError, match="boundary has passed"):
            chain.publish(change)
        assert [s.id for s in world.stored(13).snapshots] == ["mine"]
        assert chain.publish(opened).generation == 14

    def test_refused_and_collected_since_is_unknown(self, world: World) -> None:
        """The name was taken when the PUT came, and free when it was read back."""
        world.grow(1)
        intruder = Intruder(world.store)
        chain = world.chain("slow", store=intruder)
        chain.load()

        def change(head: Head | None) -> Manifest:
            world.grow(10)
            intruder.before("get", lambda: world.collect(boundary=9))
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="collected since"):
            chain.publish(change)
        assert chain.publish(opened).generation == 13

    def test_out_of_touch_it_looks_before_it_writes(self, world: World) -> None:
        chain = world.chain("sleeper")
        chain.publish(opened)
        world.grow(10)
        world.collect(boundary=9)
        world.clock.advance(GRACE_S / 2 + 1)
        assert chain.is_out_of_touch
        world.store.reset()
        assert chain.publish(opened).generation == 13
        assert world.store.counts.requests["put_if_absent"] == 1
        assert world.numbers() == [9, 10, 11, 12, 13]

    def test_an_unreadable_newer_head_leaves_it_unknown(self, world: World) -> None:
        """It may hold a boundary above what was just written."""
        world.grow(1)
        intruder = Intruder(world.store)
        chain = world.chain("slow", store=intruder)
        chain.load()

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.grow(2)
                world.damage(4)

            intruder.before("list", meanwhile)
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="generation 3 is the newest"):
            chain.publish(change)


class TestFollowing:
    def test_nothing_to_follow(self, world: World) -> None:
        with pytest.raises(NotFoundError, match="does not exist"):
            world.chain().follow()

    def test_it_asks_for_the_next_ones_and_lists_nothing(self, world: World) -> None:
        world.grow(2)
        chain = world.chain()
        chain.load()
        world.grow(3)
        world.store.reset()
        head = chain.follow()
        assert head.generation == 5
        assert head.manifest == world.stored(5)
        assert head.published_at_us == world.inner.head(key(5)).last_modified_us
        assert dict(world.store.reset().requests) == {"get": 4, "head": 1}

    def test_an_idle_look_is_one_get_and_counts_as_contact(self, world: World) -> None:
        world.grow(1)
        chain = world.chain()
        head = chain.load()
        world.store.reset()
        for _ in range(5):
            world.clock.advance(GRACE_S / 3)
            assert chain.follow() == head
            assert chain.last_contact == world.clock.monotonic()
        assert dict(world.store.counts.requests) == {"get": 5}

    def test_out_of_touch_an_absent_generation_is_not_trusted(self, world: World) -> None:
        world.grow(1)
        chain = world.chain()
        chain.load()
        assert not chain.is_out_of_touch
        world.grow(10)
        world.collect(boundary=9)
        # The next generation is gone: by asking for it alone, the chain would end here.
        world.clock.advance(GRACE_S / 2 + 1)
        assert chain.is_out_of_touch
        world.store.reset()
        assert chain.follow().generation == 12
        assert dict(world.store.counts.requests) == {"list": 1, "get": 1}
        assert not chain.is_out_of_touch

    def test_out_of_touch_what_a_sleeper_left_is_not_the_next_link(self, world: World) -> None:
        world.grow(1)
        sleeper, chain = world.chain("sleeper"), world.chain()
        chain.load()
        sleeper.load()
        real = world.stored(1)

        def change(head: Head | None) -> Manifest:
            if world.numbers() == [1]:
                world.grow(10)
                world.collect(boundary=9)
            return opened(head)

        sleeper.publish(change)
        assert world.stored(2).predecessor_checksum is not None
        assert world.stored(2).writer_epoch == real.writer_epoch + 1
        world.clock.advance(GRACE_S / 2 + 1)
        assert chain.follow().generation == 13

    def test_an_answer_that_took_too_long_is_not_trusted(self, world: World) -> None:
        world.grow(1)
        intruder = Intruder(world.store)
        chain = world.chain(store=intruder)
        chain.load()

        def meanwhile() -> None:
            world.grow(10)
            world.collect(boundary=9)
            world.clock.advance(GRACE_S / 2 + 1)

        intruder.before("get", meanwhile)
        assert chain.follow().generation == 12

    def test_a_repair_behind_the_own_head_is_followed(self, world: World) -> None:
        """Generation 2 was read, then lost to damage; repair has gone on from generation 1."""
        world.grow(2)
        chain = world.chain()
        chain.load()
        world.damage(2)
        world.chain("repair").publish(opened, repairing=True)
        assert world.stored(3).repaired_from == 1
        assert chain.follow().generation == 3

    def test_the_last_link_vanishes_before_its_time_is_asked(self, world: World) -> None:
        world.grow(1)
        intruder = Intruder(world.store)
        chain = world.chain(store=intruder)
        chain.load()
        world.grow(1)

        def meanwhile() -> None:
            world.grow(10)
            world.collect(boundary=9)

        intruder.before("head", meanwhile)
        assert chain.follow().generation == 13

    def test_a_damaged_next_generation_is_told_and_the_head_stays(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.grow(1)
        chain = world.chain()
        chain.load()
        world.grow(1)
        world.damage(2)
        with caplog.at_level(logging.ERROR, "reef"):
            assert chain.follow().damaged == (2,)
            assert chain.follow().generation == 1
        assert caplog.text.count("fell back to generation 1") == 1
        world.chain("repair").publish(opened, repairing=True)
        head = chain.follow()
        assert (head.generation, head.damaged) == (3, ())


class TestDamage:
    def test_it_falls_back_loudly(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        world.grow(4)
        world.damage(3)
        world.damage(4)
        chain = world.chain()
        with caplog.at_level(logging.ERROR, "reef"):
            head = chain.load()
        assert head is not None
        assert (head.generation, head.damaged) == (2, (3, 4))
        assert head.last_taken == 4
        [record] = caplog.records
        assert (record.name, record.levelno) == ("reef", logging.ERROR)
        assert key(3) in record.message
        assert key(4) in record.message
        assert "reef repair" in record.message

    @pytest.mark.parametrize("kind", ["flipped_bit", "short_read"])
    def test_a_reading_that_fails_once_is_not_damage(self, world: World, kind: FaultKind) -> None:
        world.grow(2)
        world.faults.arm(Fault(kind, on="get"))
        head = world.chain().load()
        assert head is not None
        assert (head.generation, head.damaged) == (2, ())
        assert len(world.faults.fired) == 1

    def test_damage_below_a_whole_head_does_not_matter(self, world: World) -> None:
        world.grow(3)
        world.damage(2)
        chain = world.chain()
        head = chain.load()
        assert head is not None
        assert (head.generation, head.damaged) == (3, ())
        assert chain.publish(opened).generation == 4

    def test_nothing_readable_is_an_error_and_not_an_empty_namespace(self, world: World) -> None:
        world.grow(2)
        world.damage(1)
        world.damage(2)
        with pytest.raises(CorruptError, match="00000000000000000002"):
            world.chain().load()
        with pytest.raises(CorruptError):
            world.chain().publish(opened)
        assert world.numbers() == [1, 2]

    def test_a_cut_generation_is_damaged_too(self, world: World) -> None:
        world.grow(1)
        world.overwrite(1, world.inner.get(key(1))[:-5])
        with pytest.raises(IncompleteError):
            world.chain().load()

    def test_another_format_version_is_no_damage(self, world: World) -> None:
        """Falling back behind a newer Reef would undo what it wrote."""
        world.grow(2)
        data = world.inner.get(key(2)).replace(b'"format_version":1', b'"format_version":2')
        world.overwrite(2, data)
        chain = world.chain()
        with pytest.raises(FormatVersionError):
            chain.load()
        with pytest.raises(FormatVersionError):
            chain.publish(opened)
        assert chain.head is None
        assert world.numbers() == [1, 2]

    def test_behind_damage_nothing_is_published(self, world: World) -> None:
        world.grow(3)
        world.damage(3)
        chain = world.chain()
        chain.load()
        with pytest.raises(CorruptError, match="reef repair") as caught:
            chain.publish(opened)
        assert caught.value.key == key(3)
        assert world.numbers() == [1, 2, 3]

    def test_damage_that_heals_is_forgotten(self, world: World) -> None:
        world.grow(2)
        whole = world.inner.get(key(2))
        world.damage(2)
        chain = world.chain()
        chain.load()
        world.overwrite(2, whole)
        assert chain.publish(opened).generation == 3

    def test_what_was_read_before_stays_and_is_published_upon(self, world: World) -> None:
        """Its author holds the whole of it: the next generation needs no other source."""
        chain = world.chain()
        chain.publish(opened)
        chain.publish(snapshotted("s"))
        world.damage(2)
        head = chain.load()
        assert head is not None
        assert (head.generation, head.damaged) == (2, ())
        assert [s.id for s in chain.publish(opened).manifest.snapshots] == ["s"]

    def test_repair_goes_on_behind_it(self, world: World) -> None:
        """What the lost generations may have given out is not given out again."""
        world.grow(3)
        chain = world.chain("repair")
        before = world.stored(3)
        world.grow(2)  # epochs 4 and 5, and nobody will be able to read it
        world.damage(4)
        world.damage(5)

        def change(head: Head | None) -> Manifest:
            assert head is not None
            m = add_snapshot(head.manifest, id="s", lsn=0, expires_at_us=0)
            return register_intent(m, id="job", kind="verify", author="a", opened_at_us=1)

        head = chain.publish(change, repairing=True)
        m = head.manifest
        assert (m.generation, m.repaired_from) == (6, 3)
        assert head.damaged == ()
        assert m.writer_epoch == 5 > before.writer_epoch
        assert m.compactor_epoch == 2
        assert m.gc.boundary == Boundary(slot=1, generation=3)
        assert [s.generation for s in m.snapshots] == [6]
        assert [i.generation for i in m.intents] == [6]
        # From there on, everybody goes on as before.
        assert world.chain().publish(opened).manifest.writer_epoch == 6
        assert world.chain().publish(lambda h: open_compactor(h.manifest)).generation == 8  # type: ignore[union-attr]

    def test_repairing_a_whole_chain_is_a_publish_like_any_other(self, world: World) -> None:
        world.grow(2)
        head = world.chain().publish(opened, repairing=True)
        assert (head.generation, head.manifest.repaired_from) == (3, None)
        assert head.manifest.writer_epoch == 3

    def test_no_change_for_repair_returns_what_is_there(self, world: World) -> None:
        world.grow(2)
        world.damage(2)
        head = world.chain().publish(lambda head: None, repairing=True)
        assert (head.generation, head.manifest) == (1, world.stored(1))


class TestLooking:
    def test_what_is_collected_between_list_and_get_is_listed_again(self, world: World) -> None:
        world.grow(2)
        intruder = Intruder(world.store)

        def meanwhile() -> None:
            world.grow(10)
            world.collect(boundary=9)

        intruder.before("get", meanwhile)
        head = world.chain(store=intruder).load()
        assert head is not None
        assert head.generation == 13

    def test_a_head_that_is_listed_but_never_there_is_unavailable(self, world: World) -> None:
        world.grow(2)
        world.faults.arm(Fault("not_found", on="get", times=0))
        with pytest.raises(UnavailableError, match="listed but not there"):
            world.chain().load()

    def test_an_empty_list_does_not_take_back_what_was_seen(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        chain = world.chain()
        head = chain.publish(opened)
        world.inner.delete(key(1))
        assert chain.load() == head
        assert "is gone" in caplog.text

    def test_a_list_that_came_late_does_not_take_back_what_was_seen(self, world: World) -> None:
        """Another thread has published between the answer and its use."""

        class Late(WrapperStore):
            def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
                listed = [*super().list(prefix, start_after)]
                if act := acts.pop("list", None):
                    act()
                yield from listed

        acts: dict[str, Callable[[], object]] = {}
        world.grow(1)
        chain = world.chain(store=Late(world.store))
        chain.load()
        acts["list"] = lambda: chain.publish(opened)
        head = chain.load()
        assert head is not None
        assert (head.generation, chain.head) == (2, head)

    def test_other_objects_in_the_folder_are_passed_over(self, world: World) -> None:
        world.grow(1)
        world.inner.put_if_absent(f"namespaces/{NAMESPACE}/manifest/notes.txt", b"hello")
        assert [found.number for found in world.chain().generations()] == [1]

    def test_generations_are_listed_with_their_times_and_sizes(self, world: World) -> None:
        world.grow(3)
        for found in world.chain().generations():
            there = world.inner.head(key(found.number))
            assert found == (found.number, there.last_modified_us, there.size)

    def test_at_a_generation(self, world: World) -> None:
        world.grow(5)
        chain = world.chain()
        chain.load()
        world.store.reset()
        head = chain.at(3)
        assert head.manifest == world.stored(3)
        assert head.published_at_us == world.inner.head(key(3)).last_modified_us
        assert dict(world.store.reset().requests) == {"get": 1, "head": 1}
        assert chain.at(5) is chain.head
        assert world.store.counts.total == 0
        with pytest.raises(NotFoundError, match="generation 6"):
            chain.at(6)

    def test_at_a_damaged_generation(self, world: World) -> None:
        world.grow(3)
        world.damage(2)
        with pytest.raises(CorruptError):
            world.chain().at(2)

    def test_below_the_boundary_only_what_something_stands_on_is_there(self, world: World) -> None:
        world.grow(2)
        world.chain("reader").publish(snapshotted("s"))
        world.grow(10)
        zombie = world.inner.get(key(2))
        world.collect(boundary=9)
        world.inner.put_if_absent(key(2), zombie)
        chain = world.chain()
        assert chain.at(3).generation == 3
        for gone in (1, 2, 5):
            with pytest.raises(NotFoundError, match="collected"):
                chain.at(gone)
        assert chain.at(9).generation == 9


class TestTime:
    def test_the_stores_time_is_known_from_the_own_put_and_carried_forward(self) -> None:
        there, here = ManualClock(1_800_000_000_000_000), ManualClock()
        store = MemoryStore(clock=there)
        chain = ManifestChain(
            store, NAMESPACE, author="a", settings=SETTINGS, clock=here, rng=random.Random(1)
        )
        assert chain.now_us is None
        assert chain.estimated_now_us == here.now_us()
        chain.publish(opened)
        assert chain.now_us == there.now_us() == chain.estimated_now_us
        here.advance(2.5)
        assert chain.now_us == there.now_us() + 2_500_000
        there.advance(100)
        chain.publish(opened)
        assert chain.now_us == there.now_us()

    def test_it_is_never_ahead_of_the_store(self) -> None:
        """What the PUT took does not count as time that has passed since."""
        clock = ManualClock()
        faults = FaultyStore(MemoryStore(clock=clock), clock=clock)
        chain = ManifestChain(
            faults, NAMESPACE, author="a", settings=SETTINGS, clock=clock, rng=random.Random(1)
        )
        faults.arm(Fault("stall", on="put_if_absent", seconds=20.0))
        faults.arm(Fault("stall", on="list", nth=2, seconds=30.0))
        chain.publish(opened)
        assert chain.now_us == clock.now_us()

    def test_reading_tells_no_time(self, world: World) -> None:
        world.grow(1)
        chain = world.chain()
        chain.load()
        assert chain.now_us is None


class TestThreads:
    def test_threads_share_a_chain(self, world: World) -> None:
        chain = world.chain()
        chain.publish(opened)
        errors: list[Exception] = []

        def work(name: str) -> None:
            try:
                for i in range(10):
                    chain.publish(snapshotted(f"{name}-{i}"))
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert chain.head is not None
        assert chain.head.generation == 41
        assert len(world.stored(41).snapshots) == 40

    def test_ten_openers_at_once_get_ten_epochs(self, world: World) -> None:
        chains = [world.chain(f"writer-{n}") for n in range(10)]
        start = threading.Barrier(10)
        epochs: list[int] = []

        def work(chain: ManifestChain) -> None:
            start.wait()
            epochs.append(chain.publish(opened).manifest.writer_epoch)

        threads = [threading.Thread(target=work, args=(chain,)) for chain in chains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(epochs) == list(range(1, 11))
        assert world.numbers() == list(range(1, 11))
