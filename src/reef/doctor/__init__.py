"""What is damaged, and how it is repaired: verify, repair, inspect, and figures of storage."""

from reef.doctor._findings import Finding, silent
from reef.doctor._inspect import (
    inspect_block,
    inspect_log,
    inspect_manifest,
    inspect_namespace,
    inspect_segment,
)
from reef.doctor._quarantine import size_of
from reef.doctor._repair import RepairReport, repair
from reef.doctor._repair_plan import RepairStep
from reef.doctor._storage_stats import storage_stats
from reef.doctor._verify import LOOKS_MAX, Look, VerifyReport, has_moved, report_of, verify
from reef.doctor._verify_log import list_slots
from reef.doctor._verify_manifests import (
    ReadGeneration,
    newest_readable,
    read_generations,
    retained_manifests,
)
from reef.doctor._verify_parts import (
    SegmentLook,
    SegmentPart,
    check_segment_part,
    cut_segment,
    join_looks,
)
from reef.doctor._verify_segments import SegmentFacts, overlaps
from reef.doctor._verify_slots import LogPart, ReadPart, read_log_part

__all__ = [
    "LOOKS_MAX",
    "Finding",
    "LogPart",
    "Look",
    "ReadGeneration",
    "ReadPart",
    "RepairReport",
    "RepairStep",
    "SegmentFacts",
    "SegmentLook",
    "SegmentPart",
    "VerifyReport",
    "check_segment_part",
    "cut_segment",
    "has_moved",
    "inspect_block",
    "inspect_log",
    "inspect_manifest",
    "inspect_namespace",
    "inspect_segment",
    "join_looks",
    "list_slots",
    "newest_readable",
    "overlaps",
    "read_generations",
    "read_log_part",
    "repair",
    "report_of",
    "retained_manifests",
    "silent",
    "size_of",
    "storage_stats",
    "verify",
]
