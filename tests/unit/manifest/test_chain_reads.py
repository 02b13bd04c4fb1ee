"""Reading the manifest chain: the newest generation, what follows it, and what damage leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from reef.errors import (
    CorruptError,
    FormatVersionError,
    IncompleteError,
    NotFoundError,
    UnavailableError,
)
from reef.format import Boundary, Manifest
from reef.manifest import Head, add_snapshot, open_compactor, register_intent
from reef.store import ObjectMeta
from reef.testing import Fault, FaultKind, WrapperStore
from tests.support.engine.chains import (
    GRACE_S,
    NAMESPACE,
    ChainWorld,
    Intruder,
    key,
    opened,
    snapshotted,
)


class TestFollowing:
    def test_nothing_to_follow(self, world: ChainWorld) -> None:
        with pytest.raises(NotFoundError, match="does not exist"):
            world.chain().follow()

    def test_it_asks_for_the_next_ones_and_lists_nothing(self, world: ChainWorld) -> None:
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

    def test_an_idle_look_is_one_get_and_counts_as_contact(self, world: ChainWorld) -> None:
        world.grow(1)
        chain = world.chain()
        head = chain.load()
        world.store.reset()
        for _ in range(5):
            world.clock.advance(GRACE_S / 3)
            assert chain.follow() == head
            assert chain.last_contact == world.clock.monotonic()
        assert dict(world.store.counts.requests) == {"get": 5}

    def test_out_of_touch_an_absent_generation_is_not_trusted(self, world: ChainWorld) -> None:
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

    def test_out_of_touch_what_a_sleeper_left_is_not_the_next_link(self, world: ChainWorld) -> None:
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

    def test_an_answer_that_took_too_long_is_not_trusted(self, world: ChainWorld) -> None:
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

    def test_a_repair_behind_the_own_head_is_followed(self, world: ChainWorld) -> None:
        """Generation 2 was read, then lost to damage; repair has gone on from generation 1."""
        world.grow(2)
        chain = world.chain()
        chain.load()
        world.damage(2)
        world.chain("repair").publish(opened, repairing=True)
        assert world.stored(3).repaired_from == 1
        assert chain.follow().generation == 3

    def test_the_last_link_vanishes_before_its_time_is_asked(self, world: ChainWorld) -> None:
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
        self, world: ChainWorld, caplog: pytest.LogCaptureFixture
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
    def test_it_falls_back_loudly(
        self, world: ChainWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
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
        assert (record.name, record.levelno) == ("reef.manifest", logging.ERROR)
        assert key(3) in record.message
        assert key(4) in record.message
        assert "reef repair" in record.message

    @pytest.mark.parametrize("kind", ["flipped_bit", "short_read"])
    def test_a_reading_that_fails_once_is_not_damage(
        self, world: ChainWorld, kind: FaultKind
    ) -> None:
        world.grow(2)
        world.faults.arm(Fault(kind, on="get"))
        head = world.chain().load()
        assert head is not None
        assert (head.generation, head.damaged) == (2, ())
        assert len(world.faults.fired) == 1

    def test_damage_below_a_whole_head_does_not_matter(self, world: ChainWorld) -> None:
        world.grow(3)
        world.damage(2)
        chain = world.chain()
        head = chain.load()
        assert head is not None
        assert (head.generation, head.damaged) == (3, ())
        assert chain.publish(opened).generation == 4

    def test_nothing_readable_is_an_error_and_not_an_empty_namespace(
        self, world: ChainWorld
    ) -> None:
        world.grow(2)
        world.damage(1)
        world.damage(2)
        with pytest.raises(CorruptError, match="00000000000000000002"):
            world.chain().load()
        with pytest.raises(CorruptError):
            world.chain().publish(opened)
        assert world.numbers() == [1, 2]

    def test_a_cut_generation_is_damaged_too(self, world: ChainWorld) -> None:
        world.grow(1)
        world.overwrite(1, world.inner.get(key(1))[:-5])
        with pytest.raises(IncompleteError):
            world.chain().load()

    def test_another_format_version_is_no_damage(self, world: ChainWorld) -> None:
        """Falling back behind a newer Reef would undo what it wrote."""
        world.grow(2)
        data = world.inner.get(key(2)).replace(b'"format_version":1', b'"format_version":9')
        world.overwrite(2, data)
        chain = world.chain()
        with pytest.raises(FormatVersionError):
            chain.load()
        with pytest.raises(FormatVersionError):
            chain.publish(opened)
        assert chain.head is None
        assert world.numbers() == [1, 2]

    def test_behind_damage_nothing_is_published(self, world: ChainWorld) -> None:
        world.grow(3)
        world.damage(3)
        chain = world.chain()
        chain.load()
        with pytest.raises(CorruptError, match="reef repair") as caught:
            chain.publish(opened)
        assert caught.value.key == key(3)
        assert world.numbers() == [1, 2, 3]

    def test_damage_that_heals_is_forgotten(self, world: ChainWorld) -> None:
        world.grow(2)
        whole = world.inner.get(key(2))
        world.damage(2)
        chain = world.chain()
        chain.load()
        world.overwrite(2, whole)
        assert chain.publish(opened).generation == 3

    def test_what_was_read_before_stays_and_is_published_upon(self, world: ChainWorld) -> None:
        """Its author holds the whole of it: the next generation needs no other source."""
        chain = world.chain()
        chain.publish(opened)
        chain.publish(snapshotted("s"))
        world.damage(2)
        head = chain.load()
        assert head is not None
        assert (head.generation, head.damaged) == (2, ())
        assert [s.id for s in chain.publish(opened).manifest.snapshots] == ["s"]

    def test_repair_goes_on_behind_it(self, world: ChainWorld) -> None:
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

    def test_repairing_a_whole_chain_is_a_publish_like_any_other(self, world: ChainWorld) -> None:
        world.grow(2)
        head = world.chain().publish(opened, repairing=True)
        assert (head.generation, head.manifest.repaired_from) == (3, None)
        assert head.manifest.writer_epoch == 3

    def test_no_change_for_repair_returns_what_is_there(self, world: ChainWorld) -> None:
        world.grow(2)
        world.damage(2)
        head = world.chain().publish(lambda head: None, repairing=True)
        assert (head.generation, head.manifest) == (1, world.stored(1))


class TestLooking:
    def test_what_is_collected_between_list_and_get_is_listed_again(
        self, world: ChainWorld
    ) -> None:
        world.grow(2)
        intruder = Intruder(world.store)

        def meanwhile() -> None:
            world.grow(10)
            world.collect(boundary=9)

        intruder.before("get", meanwhile)
        head = world.chain(store=intruder).load()
        assert head is not None
        assert head.generation == 13

    def test_a_head_that_is_listed_but_never_there_is_unavailable(self, world: ChainWorld) -> None:
        world.grow(2)
        world.faults.arm(Fault("not_found", on="get", times=0))
        with pytest.raises(UnavailableError, match="listed but not there"):
            world.chain().load()

    def test_an_empty_list_does_not_take_back_what_was_seen(
        self, world: ChainWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        chain = world.chain()
        head = chain.publish(opened)
        world.inner.delete(key(1))
        assert chain.load() == head
        assert "is gone" in caplog.text

    def test_a_list_that_came_late_does_not_take_back_what_was_seen(
        self, world: ChainWorld
    ) -> None:
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

    def test_other_objects_in_the_folder_are_passed_over(self, world: ChainWorld) -> None:
        world.grow(1)
        world.inner.put_if_absent(f"namespaces/{NAMESPACE}/manifest/notes.txt", b"hello")
        assert [found.number for found in world.chain().generations()] == [1]

    def test_generations_are_listed_with_their_times_and_sizes(self, world: ChainWorld) -> None:
        world.grow(3)
        for found in world.chain().generations():
            there = world.inner.head(key(found.number))
            assert found == (found.number, there.last_modified_us, there.size)

    def test_at_a_generation(self, world: ChainWorld) -> None:
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

    def test_at_a_damaged_generation(self, world: ChainWorld) -> None:
        world.grow(3)
        world.damage(2)
        with pytest.raises(CorruptError):
            world.chain().at(2)

    def test_below_the_boundary_only_what_something_stands_on_is_there(
        self, world: ChainWorld
    ) -> None:
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
