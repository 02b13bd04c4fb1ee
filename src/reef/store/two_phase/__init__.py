"""Two-phase CAS: put-if-absent for stores without it, over a transactional database."""

from reef.store.two_phase._store import PlainStore

__all__ = ["PlainStore"]
