"""`reef docs put`, `patch`, `delete` and `schema`.

Opening for writing fences others: whatever can be refused is refused before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._report import Report, Table, restored_report
from reef.cli.arguments import Namespace, RestoreAt, Url, connect, given_version, name_and_branch
from reef.cli.docs._docs_options import (
    Batching,
    Declared,
    File,
    LoadOptions,
    Where,
    json_of,
    pairs_of,
)
from reef.errors import InvalidInputError, NotFoundError
from reef.types import check_namespace

if TYPE_CHECKING:
    from reef.database import Database

# Text takes more room than what is stored of it, but for small numbers in lists, which take less.
_INPUT_SHARE = 4


def put(
    url: Url,
    namespace: Namespace,
    file: File,
    options: LoadOptions,
    schema: Declared = None,
    create_only: Annotated[
        bool, typer.Option("--create-only", help="Fail if a document exists already.")
    ] = False,
) -> Report:
    """Write whole documents, in atomic batches. Creates the namespace if it does not exist."""
    if create_only and options.condition is not None:
        raise InvalidInputError("both --create-only and --condition given; give at most one")
    declared = pairs_of("--schema", schema)
    return _load_file(url, namespace, file, options, declared, create_only=create_only)


def patch(
    url: Url,
    namespace: Namespace,
    options: LoadOptions,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Patches: a .jsonl or .csv file; - is stdin."),
    ] = None,
    where: Where = None,
    set: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --where: the attributes to set.")
    ] = None,
) -> Report:
    """Change attributes of existing documents.

    Takes the changes from a file, or changes all documents that match --where. In JSON, null deletes an attribute. In CSV, an empty cell leaves it as it is.
    """
    if file is not None and where is None and set is None:
        return _load_file(url, namespace, file, options, is_patch=True)
    if file is not None or where is None or set is None:
        raise InvalidInputError("what to patch is unclear; give either FILE, or --where with --set")
    from reef.cli.docs._load_batches import LoadProgress, key_of

    values = json_of("--set", set)
    prefix = options.prefix
    check_namespace(namespace)
    progress = LoadProgress()
    with connect(url) as db:
        _check_filter(db, namespace, where)
        with db.namespace(**name_and_branch(namespace)) as ns:
            progress.add(ns.patch_where(where, values, idempotency_key=key_of(prefix, 1)))
    return progress.report()


def delete(
    url: Url,
    namespace: Namespace,
    batching: Batching,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of documents.")] = None,
    where: Where = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with one id per line; - is stdin.")
    ] = None,
) -> Report:
    """Delete documents: by id, by a file of ids, or all that match. They need not exist."""
    from reef.cli.docs._input import read_ids
    from reef.cli.docs._load_batches import LoadProgress, key_of, progress_in_errors

    if sum(given is not None and given != [] for given in (ids, where, file)) != 1:
        raise InvalidInputError("what to delete is unclear; give one of ID, --where and --file")
    prefix = batching.prefix
    check_namespace(namespace)
    progress = LoadProgress()
    listed = iter([ids or []]) if file is None else read_ids(file, rows_max=batching.batch_size)
    first = list(itertools.islice(listed, 1))
    with connect(url) as db:
        if where is None:
            _check_there(db, namespace)
        else:
            _check_filter(db, namespace, where)
        with db.namespace(**name_and_branch(namespace)) as ns, progress_in_errors(progress):
            if where is not None:
                progress.add(ns.delete_where(where, idempotency_key=key_of(prefix, 1)))
            else:
                for number, some in enumerate(itertools.chain(first, listed), 1):
                    progress.add(ns.delete(some, idempotency_key=key_of(prefix, number)))
    return progress.report()


def restore(url: Url, namespace: Namespace, at: RestoreAt) -> Report:
    """Restore an earlier version, as a new commit. Newer versions stay readable.

    Attributes that were dropped since stay dropped.
    """
    given, name = given_version(at), name_and_branch(namespace)
    with connect(url) as db:
        # First: opening it for writing fences its writer.
        with db.namespace(**name, mode="r") as reader:
            lsn = reader.at(**given).lsn
        with db.namespace(**name) as ns:
            return restored_report(ns.restore(lsn=lsn))


def schema(
    url: Url,
    namespace: Namespace,
    add: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TYPE", help="Add an attribute. Repeatable.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename an attribute. Repeatable.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Drop an attribute. Repeatable.")
    ] = None,
) -> Report:
    """Print the attributes and their types.

    Before that adds, renames and drops attributes, in this order.
    """
    check_namespace(namespace)
    added, renamed = pairs_of("--add", add), pairs_of("--rename", rename)
    with connect(url) as db:
        if added or renamed or drop:
            _check_change(db, namespace, added, renamed, drop or [])
            with db.namespace(**name_and_branch(namespace)) as ns:
                found = ns.alter(add=added, rename=renamed, drop=drop or ())
        else:
            with db.namespace(**name_and_branch(namespace), mode="r") as ns:
                found = ns.schema
    table = Table(("attribute", "type"), found.items())
    return Report({"namespace": namespace, "attributes": found}, [table])


def _load_file(
    url: str,
    namespace: str,
    file: str,
    options: LoadOptions,
    schema: dict[str, str] | None = None,
    *,
    create_only: bool = False,
    is_patch: bool = False,
) -> Report:
    from reef.cli.docs._input import open_input
    from reef.cli.docs._load_batches import LoadProgress, load_batches, progress_in_errors
    from reef.engine import CreateOnly

    skip, condition = options.skip, options.condition
    check_namespace(namespace)
    prefix = options.prefix
    _check_declared_types(schema or {})
    if skip and not (is_patch or create_only or condition is not None):
        raise InvalidInputError("--skip given alone; give --create-only or --condition too")
    met: Any = CreateOnly() if create_only else condition
    with connect(url) as db:
        bytes_max = max(1, db.context().settings.log_segment_max_bytes // _INPUT_SHARE)
        with open_input(
            file, options.input_format, rows_max=options.batch_size, bytes_max=bytes_max
        ) as source:
            with progress_in_errors(LoadProgress()):  # what is refused here must not fence anybody
                first = list(itertools.islice(source.batches, 1))
            if not first:
                return LoadProgress().report()
            if is_patch:
                _check_there(db, namespace)
            with db.namespace(**name_and_branch(namespace), schema=schema) as ns:
                write = ns.patch if is_patch else ns.upsert
                progress = load_batches(
                    ns,
                    source,
                    itertools.chain(first, source.batches),
                    lambda data, key: write(
                        data, condition=met, atomic=not skip, idempotency_key=key
                    ),
                    declared=schema or (),
                    prefix=prefix,
                    is_patch=is_patch,
                )
    return progress.report()


def _check_there(db: Database, namespace: str) -> None:
    """Raise NotFoundError for a namespace that is not there: opening would make it."""
    from reef.engine import newest_manifest

    newest_manifest(db.context(), namespace)


def _check_filter(db: Database, namespace: str, where: str) -> None:
    """Raise InvalidInputError for a filter that the schema does not allow, before anybody is fenced."""
    from reef.documents.filter import parse_filter

    with db.namespace(**name_and_branch(namespace), mode="r") as ns:
        parse_filter(where, ns.view().schema)


def _check_declared_types(types: dict[str, str]) -> None:
    from reef.documents.types import Schema, Type

    Schema.EMPTY.added({name: Type.parse(text) for name, text in types.items()})


def _check_change(
    db: Database,
    namespace: str,
    added: dict[str, str],
    renamed: dict[str, str],
    dropped: Sequence[str],
) -> None:
    """Raise InvalidInputError for a change that the schema does not allow, before anybody is fenced."""
    from reef.documents.types import Schema, Type

    types = {name: Type.parse(text) for name, text in added.items()}
    try:
        with db.namespace(**name_and_branch(namespace), mode="r") as ns:
            now = ns.view().schema
    except NotFoundError:
        now = Schema.EMPTY
    now.added(types).renamed(renamed).dropped(dropped)
