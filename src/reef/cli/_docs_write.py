"""`reef docs put`, `patch`, `delete` and `schema`.

Opening for writing fences others: whatever can be refused is refused before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._bucket import AsJson, Namespace, Url, connect, named
from reef.cli._docs_options import (
    BatchSize,
    Condition,
    Declared,
    File,
    InputFormat,
    Prefix,
    Skip,
    Where,
    json_of,
    pairs_of,
)
from reef.cli._idempotency import check_prefix
from reef.cli._output import print_json, print_table
from reef.errors import InvalidInputError, NotFoundError
from reef.types import check_namespace

if TYPE_CHECKING:
    from reef.database import Database

_BATCH_ROWS = 10_000
# Text takes more room than what is stored of it, but for small numbers in lists, which take less.
_INPUT_SHARE = 4


def put(
    url: Url,
    namespace: Namespace,
    file: File,
    input_format: InputFormat = None,
    batch_size: BatchSize = _BATCH_ROWS,
    idempotency_prefix: Prefix = None,
    schema: Declared = None,
    create_only: Annotated[
        bool, typer.Option("--create-only", help="Documents must not be there yet.")
    ] = False,
    condition: Condition = None,
    skip: Skip = False,
    as_json: AsJson = False,
) -> None:
    """Write whole documents, in atomic batches. Makes the namespace if need be."""
    if create_only and condition is not None:
        raise InvalidInputError("both --create-only and --condition are given: give at most one")
    _load(
        url,
        namespace,
        file,
        input_format,
        batch_size,
        idempotency_prefix,
        schema=pairs_of("--schema", schema),
        condition=condition,
        create_only=create_only,
        skip=skip,
        is_patch=False,
        as_json=as_json,
    )


def patch(
    url: Url,
    namespace: Namespace,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Patches: .jsonl, .csv; - is stdin.")
    ] = None,
    where: Where = None,
    set: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --where: the attributes to set.")
    ] = None,
    input_format: InputFormat = None,
    batch_size: BatchSize = _BATCH_ROWS,
    idempotency_prefix: Prefix = None,
    condition: Condition = None,
    skip: Skip = False,
    as_json: AsJson = False,
) -> None:
    """Change some attributes of documents that are there: from a file, or of all that match.

    In JSON null deletes an attribute; in CSV an empty cell leaves it as it is.
    """
    if file is not None and where is None and set is None:
        _load(
            url,
            namespace,
            file,
            input_format,
            batch_size,
            idempotency_prefix,
            condition=condition,
            skip=skip,
            is_patch=True,
            as_json=as_json,
        )
        return
    if file is not None or where is None or set is None:
        raise InvalidInputError(
            "patch takes either FILE, or --where and --set together: give one of the two"
        )
    from reef.cli._docs_load import LoadProgress, key_of

    values = json_of("--set", set)
    prefix = check_prefix(idempotency_prefix)
    check_namespace(namespace)
    tally = LoadProgress()
    with connect(url) as db:
        _check_filter(db, namespace, where)
        with db.namespace(**named(namespace)) as ns:
            tally.add(ns.patch_where(where, values, idempotency_key=key_of(prefix, 1)))
    tally.print(as_json)


def delete(
    url: Url,
    namespace: Namespace,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids.")] = None,
    where: Where = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with an id a line; - is stdin.")
    ] = None,
    batch_size: BatchSize = _BATCH_ROWS,
    idempotency_prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Delete documents: by id, from a list, or all that match. They need not be there."""
    from reef.cli._docs_input import read_ids
    from reef.cli._docs_load import LoadProgress, key_of, told_with

    if sum(given is not None and given != [] for given in (ids, where, file)) != 1:
        raise InvalidInputError("delete takes one of ID, --where and --file: give exactly one")
    prefix = check_prefix(idempotency_prefix)
    check_namespace(namespace)
    tally = LoadProgress()
    listed = iter([ids or []]) if file is None else read_ids(file, rows_max=batch_size)
    first = list(itertools.islice(listed, 1))
    with connect(url) as db:
        if where is None:
            _check_there(db, namespace)
        else:
            _check_filter(db, namespace, where)
        with db.namespace(**named(namespace)) as ns, told_with(tally):
            if where is not None:
                tally.add(ns.delete_where(where, idempotency_key=key_of(prefix, 1)))
            else:
                for number, some in enumerate(itertools.chain(first, listed), 1):
                    tally.add(ns.delete(some, idempotency_key=key_of(prefix, number)))
    tally.print(as_json)


def schema(
    url: Url,
    namespace: Namespace,
    add: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TYPE", help="Add an attribute.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename an attribute.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Drop one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the attributes and their types; or add, rename and drop some first, in this order."""
    check_namespace(namespace)
    added, renamed = pairs_of("--add", add), pairs_of("--rename", rename)
    with connect(url) as db:
        if added or renamed or drop:
            _check_change(db, namespace, added, renamed, drop or [])
            with db.namespace(**named(namespace)) as ns:
                found = ns.alter(add=added, rename=renamed, drop=drop or ())
        else:
            with db.namespace(**named(namespace), mode="r") as ns:
                found = ns.schema
    if as_json:
        print_json({"namespace": namespace, "attributes": found})
    else:
        print_table(("attribute", "type"), found.items())


def _load(
    url: str,
    namespace: str,
    file: str,
    input_format: str | None,
    batch_size: int,
    idempotency_prefix: str | None,
    *,
    schema: dict[str, str] | None = None,
    condition: str | None,
    create_only: bool = False,
    skip: bool,
    is_patch: bool,
    as_json: bool,
) -> None:
    from reef.cli._docs_input import open_input
    from reef.cli._docs_load import LoadProgress, load, load_progress, told_with
    from reef.engine import CreateOnly

    check_namespace(namespace)
    prefix = check_prefix(idempotency_prefix)
    _check_types(schema or {})
    if skip and not (is_patch or create_only or condition is not None):
        raise InvalidInputError(
            "--skip is given without --create-only or --condition: give one of them, "
            "or leave it out"
        )
    met: Any = CreateOnly() if create_only else condition
    with connect(url) as db:
        bytes_max = max(1, db.context().settings.log_segment_max_bytes // _INPUT_SHARE)
        with open_input(file, input_format, rows_max=batch_size, bytes_max=bytes_max) as source:
            with told_with(LoadProgress()):  # what is refused here must not fence anybody
                first = list(itertools.islice(source.batches, 1))
            if not first:
                LoadProgress().print(as_json)
                return
            if is_patch:
                _check_there(db, namespace)
            with (
                db.namespace(**named(namespace), schema=schema) as ns,
                load_progress(source) as advance,
            ):
                write = ns.patch if is_patch else ns.upsert
                tally = load(
                    ns,
                    itertools.chain(first, source.batches),
                    lambda data, key: write(
                        data, condition=met, atomic=not skip, idempotency_key=key
                    ),
                    declared=schema or (),
                    prefix=prefix,
                    is_patch=is_patch,
                    advance=advance,
                )
    tally.print(as_json)


def _check_there(db: Database, namespace: str) -> None:
    """Raise NotFoundError for a namespace that is not there: opening would make it."""
    from reef.engine import newest_manifest

    newest_manifest(db.context(), namespace)


def _check_filter(db: Database, namespace: str, where: str) -> None:
    """Raise InvalidInputError for a filter that the schema does not allow, before anybody is fenced."""
    from reef.documents.filter import parse_filter

    with db.namespace(**named(namespace), mode="r") as ns:
        parse_filter(where, ns.view().schema)


def _check_types(types: dict[str, str]) -> None:
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
        with db.namespace(**named(namespace), mode="r") as ns:
            now = ns.view().schema
    except NotFoundError:
        now = Schema.EMPTY
    now.added(types).renamed(renamed).dropped(dropped)
