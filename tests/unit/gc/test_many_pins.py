"""Pins are judged together: what they have in common is asked for once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reef.format import Pin
from reef.gc import PinReason, Pins
from reef.manifest import ManifestChain
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket

COUNT = 3000


@pytest.mark.parametrize("children", [1, 30])
def test_the_requests_go_by_children_and_not_by_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: int
) -> None:
    bucket = Bucket(tmp_path)
    bucket.write("flush")
    asked: list[str] = []

    def counted(name: str) -> None:
        real = getattr(ManifestChain, name)

        def call(chain: ManifestChain, *arguments: object) -> object:
            asked.append(name)
            return real(chain, *arguments)

        monkeypatch.setattr(ManifestChain, name, call)

    with bucket.open() as db:
        context = db.context()
        chain = context.chain(NAMESPACE)
        head = chain.load()
        assert head is not None
        pins = tuple(Pin(1, 1, f"{NAMESPACE}@b{n % children}", f"{n:032x}") for n in range(COUNT))
        manifest = msgspec.structs.replace(head.manifest, pins=pins)
        for name in ("load", "generations", "at"):
            counted(name)
        judged = Pins(chain, context.store, context.threads).judge(
            manifest, now_us=head.published_at_us + 1, grace_us=0
        )
    assert {one.reason for one in judged} == {PinReason.YOUNG}
    assert len(asked) <= 3 * children + 5
