"""Ctrl-C in the middle of a write."""

from __future__ import annotations

import pytest

from reef.database import Database


def interrupt_next_write(monkeypatch: pytest.MonkeyPatch, db: Database) -> None:
    """Let Ctrl-C come when the next write draws the nonce of its log object; those behind it go on."""
    rng = db.context().rng
    randbytes = rng.randbytes

    def interrupted(_: int) -> bytes:
        monkeypatch.setattr(rng, "randbytes", randbytes)
        raise KeyboardInterrupt

    monkeypatch.setattr(rng, "randbytes", interrupted)
