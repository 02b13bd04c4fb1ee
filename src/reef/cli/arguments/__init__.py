"""What commands take: how functions become commands, and the arguments that several share.

group, add_commands, derived, AsJson
                      functions as commands; the fields of an Options struct as options; `--json`
Url, Namespace, Scope, Apply
                      the bucket, a namespace, one or all, `--apply`
connect, name_and_branch, check_bucket_exists, no_namespace_text
                      opening what these name, and what to say if it is not there
Version, ReadLsn, StartLsn, RestoreLsn
                      which version is read, or started from
check_idempotency, IDEMPOTENCY_BYTES_MAX, PREFIX_BYTES_MAX
                      keys that make a write safe to repeat

The options of a struct are in a module that is loaded when its command runs: it needs msgspec.
"""

from __future__ import annotations

from reef.cli.arguments._bucket_arguments import (
    Apply,
    Namespace,
    Scope,
    Url,
    check_bucket_exists,
    connect,
    name_and_branch,
    no_namespace_text,
)
from reef.cli.arguments._parameters import AsJson, add_commands, derived, group
from reef.cli.arguments._version_arguments import (
    IDEMPOTENCY_BYTES_MAX,
    PREFIX_BYTES_MAX,
    ReadLsn,
    RestoreLsn,
    StartLsn,
    Version,
    check_idempotency,
)

__all__ = [
    "IDEMPOTENCY_BYTES_MAX",
    "PREFIX_BYTES_MAX",
    "Apply",
    "AsJson",
    "Namespace",
    "ReadLsn",
    "RestoreLsn",
    "Scope",
    "StartLsn",
    "Url",
    "Version",
    "add_commands",
    "check_bucket_exists",
    "check_idempotency",
    "connect",
    "derived",
    "group",
    "name_and_branch",
    "no_namespace_text",
]
