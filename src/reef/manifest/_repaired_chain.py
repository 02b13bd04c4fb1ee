"""Going on behind damaged generations: what they may have said must not be said again.

A damaged generation may have opened a writer, a compactor, or moved the boundary, and its publisher
acts on it. Nobody can read it, but each generation raises an epoch by one at most (a
rule between generations), so the number of those lost bounds what they could have done.
"""

from __future__ import annotations

import msgspec

from reef.format import Boundary, Manifest


def go_on_behind(m: Manifest, lost: int) -> Manifest:
    """Return `m` with epochs that none of `lost` generations after it can have given to anybody.

    And with a boundary up to which they may have collected, so that no sleeper's generation or
    fence counts because its collection is forgotten.
    """
    return msgspec.structs.replace(
        m,
        writer_epoch=m.writer_epoch + lost,
        compactor_epoch=m.compactor_epoch + lost,
        gc=msgspec.structs.replace(
            m.gc, boundary=Boundary(slot=m.wal_floor, generation=m.generation)
        ),
    )


AGAIN = 1 << 40
"""Nobody publishes as many generations, or opens a namespace as often."""


def begin_again(m: Manifest) -> Manifest:
    """Return `m` as the first generation after all manifests were lost.

    `m` has the highest writer epoch that is known. What a sleeper holds, or takes next, is lower than
    the number that this generation has, and its epochs and boundary: so no generation of the sleeper's
    counts. Those numbers also lie above an earlier beginning of this kind. On paper it continues
    a generation 1, which lies below the boundary: nobody needs that to exist.
    """
    number = (m.writer_epoch // AGAIN + 1) * AGAIN
    boundary = Boundary(slot=m.gc.boundary.slot, generation=number)
    return msgspec.structs.replace(
        m,
        generation=number,
        born=number,
        predecessor_checksum=0,
        repaired_from=1,
        writer_epoch=number,
        compactor_epoch=number,
        gc=msgspec.structs.replace(m.gc, boundary=boundary),
    )


def renumber(m: Manifest, planned: int, number: int) -> Manifest:
    """Return `m` with what it dates to generation `planned` dated to `number`.

    Changes take the head's successor for the generation they will be part of. It is another one
    where damaged generations lie between, and for the first.
    """
    if planned == number:
        return m

    def dated(generation: int) -> int:
        return number if generation == planned else generation

    replace = msgspec.structs.replace
    shortened = m.gc.shortened
    if shortened is not None:
        shortened = replace(shortened, since_generation=dated(shortened.since_generation))
    return replace(
        m,
        born=dated(m.born),
        intents=tuple(replace(i, generation=dated(i.generation)) for i in m.intents),
        pins=tuple(replace(p, generation=dated(p.generation)) for p in m.pins),
        snapshots=tuple(replace(s, generation=dated(s.generation)) for s in m.snapshots),
        followed=tuple(map(dated, m.followed)),
        gc=replace(
            m.gc,
            shortened=shortened,
            pending=tuple(
                replace(p, since_generation=dated(p.since_generation)) for p in m.gc.pending
            ),
        ),
    )
