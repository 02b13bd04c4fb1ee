"""What commands take: how functions become commands, and the arguments that several share.

group, add_commands, derived, AsJson
                      functions as commands; the fields of an Options struct as options; `--json`
Url, Namespace, Scope, Apply
                      the bucket, a namespace, one or all, `--apply`
connect, name_and_branch, check_bucket_exists, no_namespace_text
                      opening what these name, and what to say if it is not there
Version, ReadAt, StartAt, RestoreAt
                      which version is read, or started from
given_version, lsn_of what such an option says: an LSN or a time; the LSN of either
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
    ReadAt,
    RestoreAt,
    StartAt,
    Version,
    check_idempotency,
    given_version,
    lsn_of,
)

__all__ = [
    "IDEMPOTENCY_BYTES_MAX",
    "PREFIX_BYTES_MAX",
    "Apply",
    "AsJson",
    "Namespace",
    "ReadAt",
    "RestoreAt",
    "Scope",
    "StartAt",
    "Url",
    "Version",
    "add_commands",
    "check_bucket_exists",
    "check_idempotency",
    "connect",
    "derived",
    "given_version",
    "group",
    "lsn_of",
    "name_and_branch",
    "no_namespace_text",
]
