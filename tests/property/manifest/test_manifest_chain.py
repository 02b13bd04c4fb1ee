"""Several actors publish, sleep, collect and crash on a store that loses replies: nothing else is lost.

What really happened is taken from below every wrapper: the first object ever created under a name is
that generation. Whatever is created there again, after its collection, must count for nobody.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import Buffer

from reef.errors import OutcomeUnknownError, UnavailableError
from reef.format import Boundary, Manifest, decode_manifest, manifest_checksum, parse_manifest_key
from reef.manifest import Head, ManifestChain, advance_boundary, open_writer, register_intent
from reef.settings import Settings
from reef.store import MemoryStore, Store
from reef.testing import Fault, FaultyStore, ManualClock, WrapperStore

NAMESPACE = "products"
GRACE_S = 900.0
ACTORS = 3

Point = Literal["build", "put_if_absent", "get", "list"]
Act = Literal["publish", "collect", "supersede"]


class Made(NamedTuple):
    manifest: Manifest
    checksum: int


class Recorder(WrapperStore):
    """Notes every generation that is created, the first time."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.made: dict[int, Made] = {}

    def put_if_absent(self, key: str, data: Buffer) -> None:
        super().put_if_absent(key, data)
        named, whole = parse_manifest_key(key), bytes(data)
        assert named is not None
        if named.generation not in self.made:
            made = Made(decode_manifest(whole, key=key), manifest_checksum(whole, key=key))
            self.made[named.generation] = made


class Intruder(WrapperStore):
    """Lets others act in the middle: before the next request of a kind."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.plan: list[tuple[Point, Callable[[], object]]] = []

    def reach(self, point: str) -> None:
        due = [act for at, act in self.plan if at == point]
        self.plan = [planned for planned in self.plan if planned[0] != point]
        for act in due:
            act()

    def _request(self, operation, key, call):  # type: ignore[no-untyped-def]
        self.reach(operation)
        return call()


faults = st.one_of(
    st.builds(
        Fault,
        st.sampled_from(
            [
                "reply_lost",
                "false_conflict",
                "conflict",
                "error_before",
                "timeout_after",
                "lands_late",
            ]
        ),
        on=st.just("put_if_absent"),
        nth=st.integers(1, 2),
        times=st.integers(1, 2),
    ),
    st.builds(
        Fault,
        st.just("error_before"),
        on=st.sampled_from(["get", "list"]),
        nth=st.integers(1, 3),
    ),
)
# One at a time: what is read wrong twice is damaged.
misreads = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["flipped_bit", "short_read"]),
        on=st.just("get"),
        nth=st.integers(1, 3),
    ),
    max_size=1,
)
meanwhile = st.lists(
    st.tuples(
        st.sampled_from(["build", "put_if_absent", "get", "list"]),
        st.sampled_from(["publish", "collect", "supersede"]),
    ),
    max_size=3,
)
actors = st.integers(0, ACTORS - 1)


class Chains(RuleBasedStateMachine):
    """The actors, and what each was told."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.bucket = Recorder(MemoryStore(clock=self.clock))
        self.faults = FaultyStore(self.bucket, clock=self.clock, rng=random.Random(5))
        self.numbers = itertools.count(1)
        self.told: dict[str, Head] = {}
        self.unknown: set[str] = set()
        self.not_written: set[str] = set()
        self.intruders = [Intruder(self.faults) for _ in range(ACTORS)]
        self.chains = [self.chain(intruder) for intruder in self.intruders]
        self.seen = [0] * ACTORS
        self.bystander = self.chain(self.bucket)

    def chain(self, store: Store) -> ManifestChain:
        name = f"actor-{next(self.numbers)}"
        return ManifestChain(
            store,
            NAMESPACE,
            author=name,
            settings=Settings(cas_max_retries=2),
            clock=self.clock,
            rng=random.Random(name),
        )

    @rule(actor=actors, plan=st.tuples(st.lists(faults, max_size=2), misreads), meanwhile=meanwhile)
    def publish(
        self, actor: int, plan: tuple[list[Fault], list[Fault]], meanwhile: list[tuple[Point, Act]]
    ) -> None:
        intruder = self.intruders[actor]
        acts = {
            "publish": self.publish_undisturbed,
            "collect": self.collect,
            "supersede": self.supersede,
        }
        intruder.plan = [(point, acts[act]) for point, act in meanwhile]
        self.faults.arm(*plan[1], *plan[0])
        self.publish_with(self.chains[actor], intruder)
        self.faults.disarm()
        intruder.plan = []

    def publish_undisturbed(self) -> None:
        self.publish_with(self.bystander, None)

    def publish_with(self, chain: ManifestChain, intruder: Intruder | None) -> None:
        tag = f"p{next(self.numbers)}"

        def change(head: Head | None) -> Manifest:
            if head is None:
                m = Manifest.first(NAMESPACE, author="x", nonce="0" * 32, created_at_us=0)
            else:
                m = head.manifest
            if intruder is not None:
                intruder.reach("build")
            # Were a published change made again, its tag would be refused here.
            return register_intent(open_writer(m), id=tag, kind="t", author="x", opened_at_us=0)

        try:
            self.told[tag] = chain.publish(change)
        except OutcomeUnknownError:
            self.unknown.add(tag)
        except UnavailableError:
            self.not_written.add(tag)

    def supersede(self) -> None:
        """Let the newest generation be built upon, and collected."""
        self.publish_undisturbed()
        self.collect()

    @rule()
    def collect(self) -> None:
        """Do as garbage collection does: only what was superseded a grace period ago."""
        collector = self.chain(self.bucket)
        if collector.load() is None:
            return
        self.clock.advance(GRACE_S)
        old = collector.head
        assert old is not None
        collector.publish(
            lambda head: (
                advance_boundary(head.manifest, Boundary(slot=1, generation=old.generation))
                if head
                else None
            )
        )
        for found in collector.generations():
            if found.number < old.generation:
                self.bucket.delete(
                    f"namespaces/{NAMESPACE}/manifest/{found.number:020d}.manifest.json"
                )

    @rule()
    def land(self) -> None:
        self.faults.land()

    @rule(seconds=st.sampled_from([1.0, GRACE_S / 3, GRACE_S]))
    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(actor=actors)
    def crash(self, actor: int) -> None:
        self.chains[actor] = self.chain(self.intruders[actor])
        self.seen[actor] = 0

    @rule(actor=actors, by=st.sampled_from(["load", "follow"]))
    def look(self, actor: int, by: str) -> None:
        if not self.bucket.made:
            assert self.chains[actor].load() is None
            return
        head = getattr(self.chains[actor], by)()
        assert head.generation == max(self.bucket.made)

    @invariant()
    def generations_are_a_chain(self) -> None:
        made = self.bucket.made
        assert sorted(made) == list(range(1, len(made) + 1))
        for before, after in itertools.pairwise(sorted(made)):
            assert made[after].manifest.predecessor_checksum == made[before].checksum
            assert made[after].manifest.writer_epoch >= made[before].manifest.writer_epoch

    @invariant()
    def nothing_that_was_told_is_lost_and_nothing_is_doubled(self) -> None:
        made = self.bucket.made
        tags = [{i.id for i in made[number].manifest.intents} for number in sorted(made)]
        for before, after in itertools.pairwise([set(), *tags]):
            assert before <= after
            assert len(after) - len(before) <= 1
        for tag, head in self.told.items():
            assert made[head.generation].manifest == head.manifest
            assert tag in tags[head.generation - 1]
            assert head.generation == 1 or tag not in tags[head.generation - 2]
        published = tags[-1] if tags else set()
        assert set(self.told) <= published <= set(self.told) | self.unknown
        assert not published & self.not_written

    @invariant()
    def no_epoch_is_given_out_twice(self) -> None:
        epochs = [head.manifest.writer_epoch for head in self.told.values()]
        assert len(set(epochs)) == len(epochs)

    @invariant()
    def nobody_believes_in_what_does_not_count(self) -> None:
        for actor, chain in enumerate(self.chains):
            head = chain.head
            if head is None:
                continue
            assert head.manifest == self.bucket.made[head.generation].manifest
            assert head.generation >= self.seen[actor]
            assert head.damaged == ()
            self.seen[actor] = head.generation

    def teardown(self) -> None:
        if not hasattr(self, "faults"):
            return
        self.faults.disarm()
        head = self.chain(self.bucket).load()
        assert (head is None) == (not self.bucket.made)
        if head is not None:
            assert head.generation == max(self.bucket.made)
            assert {i.id for i in head.manifest.intents} >= set(self.told)


TestChains = Chains.TestCase
TestChains.settings = settings(max_examples=150, stateful_step_count=30)
