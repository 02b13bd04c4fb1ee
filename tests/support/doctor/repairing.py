"""Repair as tests call it: what must hold of a plan, of what is mended, and for whoever reads then."""

from __future__ import annotations

from pathlib import Path

from reef.doctor import RepairReport, RepairStep, repair, verify
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket


def plan(bucket: Bucket) -> RepairReport:
    """Return what repair would do, which must be found wrong and must write nothing."""
    assert verify(bucket.context(), NAMESPACE, deep=True).problems
    before = bucket.everything()
    report = repair(bucket.context(), NAMESPACE)
    assert bucket.everything() == before, "a dry run wrote something"
    assert not report.applied
    assert not report.is_mended
    return report


def mend(bucket: Bucket, *, accept_loss: bool = False) -> RepairReport:
    """Repair; nothing may be deleted or overwritten by it, and nothing may be wrong after it."""
    before = bucket.everything()
    report = repair(bucket.context(), NAMESPACE, apply=True, accept_loss=accept_loss)
    after = bucket.everything()
    assert {key: after.get(key) for key in before} == before
    assert report.applied
    assert report.is_mended, report
    assert {step.state for step in report.steps} == {"done"}
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()
    assert repair(bucket.context(), NAMESPACE).steps == ()
    return report


def expect(bucket: Bucket, rows: dict[bytes, bytes]) -> None:
    """Everybody must see exactly these rows, before and after somebody writes."""
    assert bucket.read() == rows
    assert bucket.read_as_writer() == rows
    assert bucket.read() == rows
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()


def only(report: RepairReport) -> RepairStep:
    (step,) = report.steps
    return step


def is_quarantined(bucket: Bucket, path: Path) -> bool:
    """Return whether the bytes of `path` were copied."""
    own = bucket.root / "namespaces" / NAMESPACE
    folder = own / "quarantine" / path.parent.relative_to(own)
    copies = [copy.read_bytes() for copy in folder.glob(f"{path.name}*")]
    return copies == [path.read_bytes()]
