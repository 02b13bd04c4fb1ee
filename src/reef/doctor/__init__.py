"""What is damaged in a namespace, and its repair. Everything but `repair` only reads.

verify              checks a namespace: a VerifyReport, with each ProblemOrNote
repair              plans or applies the repair of what verify finds: a RepairReport, with each RepairStep
inspect_namespace   the objects of a namespace; and the content of one: inspect_manifest, inspect_log,
                    inspect_segment, inspect_block
storage_stats       how many objects and bytes a namespace has; MANIFESTS_GONE, a state that it may give
Examination         verify in parts: what to read, for tasks, and the Diagnosis of what was read;
                    EXAMINATIONS_MAX: how often to examine a namespace that changes meanwhile;
                    changing: the error after that
plan_rebuild        from where everything can be derived again: a RebuildPlan, with each FoldStart
has_no_manifest     whether all manifests are gone, and other objects are not
plan_without_manifests
                    a generation to begin again with then: a PlanWithoutManifests; SchemaOf tells faces
fence_writers       keeps every older writer from committing
stored_size             the bytes of an object, None if it is missing
"""

from reef.doctor._examine import EXAMINATIONS_MAX, Diagnosis, Examination, changing
from reef.doctor._fence_writers import fence_writers
from reef.doctor._inspect_objects import (
    inspect_block,
    inspect_log,
    inspect_manifest,
    inspect_namespace,
    inspect_segment,
)
from reef.doctor._plan_without_manifests import (
    PlanWithoutManifests,
    SchemaOf,
    has_no_manifest,
    plan_without_manifests,
)
from reef.doctor._problems import ProblemOrNote
from reef.doctor._quarantine import stored_size
from reef.doctor._refold_plan import FoldStart, RebuildPlan, plan_rebuild
from reef.doctor._repair_namespace import RepairReport, repair
from reef.doctor._repair_plan import RepairStep
from reef.doctor._storage_stats import MANIFESTS_GONE, storage_stats
from reef.doctor._verify_namespace import VerifyReport, verify

__all__ = [
    "EXAMINATIONS_MAX",
    "MANIFESTS_GONE",
    "Diagnosis",
    "Examination",
    "FoldStart",
    "PlanWithoutManifests",
    "ProblemOrNote",
    "RebuildPlan",
    "RepairReport",
    "RepairStep",
    "SchemaOf",
    "VerifyReport",
    "changing",
    "fence_writers",
    "has_no_manifest",
    "inspect_block",
    "inspect_log",
    "inspect_manifest",
    "inspect_namespace",
    "inspect_segment",
    "plan_rebuild",
    "plan_without_manifests",
    "repair",
    "storage_stats",
    "stored_size",
    "verify",
]
