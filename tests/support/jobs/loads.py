"""A bulk load, begun."""

from __future__ import annotations

from typing import Any

from reef.engine import Context
from reef.jobs.load import LoadPlan, plan_load, register_load


def begin_load(context: Context, namespace: str, **options: Any) -> LoadPlan:
    plan = plan_load(context, namespace, **options)
    register_load(context, plan)
    return plan
