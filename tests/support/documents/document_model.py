"""Documents as a plain dict, random requests and filters for them, and every way to read them, compared.

The dict holds values by the number of their attribute, so that the schema can change beside it, as it
does in the bucket.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cmp_to_key
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa

import reef
from reef.documents import DocumentReceipt, Documents, DocumentView
from reef.engine import CreateOnly, Equals, MustExist

Value = Any
Names = dict[str, Value]
Schema = dict[str, tuple[int, str]]
"""The number and the type of each attribute, by its name."""
Held = dict[str, dict[int, Value]]
"""Of each document the values of its attributes, by number."""
Filter = Any
T = TypeVar("T")

IDS = ["a", "a ", "ab", "b", "é", "é1", "user/1", "z" * 60]
NAMES = ["n", "f", "s", "x", "y", "tags", "vector"]
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
TEXTS = ["", "a", "b", "ab", "é", "a*", "'", "ab" * 40]
# Few values, so that they meet; long ones, so that bounds of blocks are cut.
VALUES: dict[str, Sequence[Value]] = {
    "int64": [-2, -1, 0, 1, 2, 3, -(2**63), 2**63 - 1],
    "float64": [0.0, 0.5, -1.5, 2.0, 2.0**60],
    "string": TEXTS,
    "bool": [False, True],
    "datetime": [EPOCH + timedelta(microseconds=n) for n in range(-2, 3)],
    "uuid": [UUID(int=n << 60) for n in range(4)],
    "bytes": [b"", b"\0", b"a", b"\xff" * 70],
    "[]string": [[], ["a"], ["a", "b"], ["", "ab" * 40, "a"]],
    "[]int64": [[], [1], [1, -2], [2, 2, 0]],
    "json": [{"a": [1, None, {"b": "é"}]}, {}, {"a": 1.5}],
    "vector[2]": [[0.0, 0.5], [-1.0, 2.0], [2.0, 2.0]],
}
ORDERED = ("int64", "float64", "string", "bool", "datetime", "uuid", "bytes")


def types_of(name: str) -> list[str]:
    """Return what an attribute of that name may be inferred to be."""
    return ["vector[2]"] if name == "vector" else [*VALUES][:-1]


def some(rng: Random, of: Sequence[T], most: int, least: int = 0) -> list[T]:
    """Return some of them, each once, in any order."""
    return rng.sample(of, rng.randint(min(least, len(of)), min(most, len(of))))


# Filters, in three-valued logic.

COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "Lte": operator.le,
    "Gt": operator.gt,
    "Gte": operator.ge,
}


def a_condition(rng: Random, schema: Mapping[str, str], incoming: bool) -> Filter:
    name = rng.choice(["id", *schema])
    kind = "string" if name == "id" else schema[name]
    operators = ["IsNull"]
    if kind in ORDERED:
        operators += ["Eq", "NotEq", "In", "NotIn"]
        operators += ["Lt", "Lte", "Gt", "Gte"] if kind != "bool" else []
        operators += ["Contains", "Glob"] if kind == "string" else []
    if kind.startswith("[]"):
        operators += ["Contains", "NotContains", "ContainsAny"]
    op = rng.choice(operators)
    if op == "IsNull":
        return name, op
    values = IDS if name == "id" else VALUES[kind.removeprefix("[]")]
    if op == "Glob":
        return name, op, rng.choice(["a*", "*b", "?", "é*"])
    if op in ("In", "NotIn", "ContainsAny"):
        return name, op, some(rng, values, 3)
    if incoming and op in COMPARE and name != "id" and rng.random() < 0.5:
        return name, op, reef.Incoming(name)
    return name, op, rng.choice(values)


def a_filter(
    rng: Random, schema: Mapping[str, str], *, incoming: bool = False, depth: int = 2
) -> Filter:
    """Return any filter on attributes of a schema."""
    if not depth or rng.random() < 0.5:
        return a_condition(rng, schema, incoming)
    inner = [a_filter(rng, schema, incoming=incoming, depth=depth - 1) for _ in range(3)]
    kind = rng.choice(["And", "Or", "Not"])
    return (kind, inner[0]) if kind == "Not" else (kind, inner[: rng.choice([0, 1, 2, 2, 2, 3])])


def holds(filter: Filter, row: Names, incoming: Names | None = None) -> bool | None:
    """Return what a filter says of a document; None where SQL says NULL."""
    first, *rest = filter
    if first == "Not":
        inner = holds(rest[0], row, incoming)
        return None if inner is None else not inner
    if first in ("And", "Or"):
        said = [holds(one, row, incoming) for one in rest[0]]
        decisive = first == "Or"
        return decisive if decisive in said else None if None in said else not decisive
    held, op = row.get(first), rest[0]
    if op == "IsNull":
        return held is None
    value = rest[1]
    if isinstance(value, reef.Incoming):
        value = (incoming or {}).get(value.name)
    if held is None or value is None:
        return None
    if op in COMPARE:
        return COMPARE[op](held, value)
    if op == "Glob":
        return {"a*": held[:1] == "a", "*b": held[-1:] == "b", "?": len(held) == 1}.get(
            value, held[:1] == "é"
        )
    if op in ("In", "NotIn"):
        return (held in value) == (op == "In")
    if op == "ContainsAny":
        return any(one in held for one in value)
    return (value in held) == (op == "Contains")


# Requests.


@dataclass
class Request:
    """A write, as it is sent; and the rows of its patches and upserts, as dicts."""

    upserts: list[Names] = field(default_factory=list)
    patches: list[Names] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    condition: Any = None
    atomic: bool = True
    as_columns: bool = False

    def send(self, ns: Documents, key: str | None) -> DocumentReceipt:
        return ns.write(
            upserts=self._given(self.upserts),
            patches=self._given(self.patches),
            deletes=self.deletes or None,
            condition=self.condition,
            atomic=self.atomic,
            idempotency_key=key,
        )

    def _given(self, rows: list[Names]) -> object:
        if not rows:
            return None
        if self.as_columns:  # then all rows have the same
            return {name: [row[name] for row in rows] for name in rows[0]}
        return rows


def is_blank(value: Value) -> bool:
    """Whether nothing can be told from it about the type of an attribute that is new."""
    return value is None or value == []


@dataclass
class Model:
    """What there is: a schema, and documents."""

    schema: Schema = field(default_factory=dict)
    next_id: int = 1
    held: Held = field(default_factory=dict)

    @property
    def types(self) -> dict[str, str]:
        return {name: type for name, (_, type) in self.schema.items()}

    def copy(self) -> Model:
        return Model(dict(self.schema), self.next_id, {id: dict(d) for id, d in self.held.items()})

    def add(self, types: Mapping[str, str]) -> None:
        for name, type in types.items():
            self.schema[name] = (self.next_id, type)
            self.next_id += 1

    def taken(self, rows: list[Names], types: Mapping[str, str]) -> list[Names]:
        """Return rows without what is left out; what is new is in the schema then."""
        names = dict.fromkeys(name for row in rows for name in row if name != "id")
        new = [name for name in names if name not in self.schema]
        for name in new:
            if not all(is_blank(row.get(name)) for row in rows):
                self.add({name: types[name]})
        return [
            {name: v for name, v in row.items() if name == "id" or name in self.schema}
            for row in rows
        ]

    def shown(self, id: str, schema: Schema | None = None) -> Names:
        """Return a document as it is read."""
        held = self.held[id]
        found = {name: held.get(n) for name, (n, _) in (schema or self.schema).items()}
        return {"id": id, **{name: value for name, value in found.items() if value is not None}}

    def rows(self) -> list[Names]:
        """Return all documents, by id."""
        return [self.shown(id) for id in sorted(self.held, key=str.encode)]

    def codes(self, request: Request) -> list[str]:
        """Return what becomes of each row."""
        rows = [(row["id"], row, "written", False) for row in request.upserts]
        rows += [(row["id"], row, "written", True) for row in request.patches]
        rows += [(id, {}, "deleted", False) for id in request.deletes]
        codes = []
        for id, incoming, code, is_patch in rows:
            refused = self._refused(request.condition, id, incoming)
            if refused is None and is_patch and id not in self.held:
                refused = "missing"
            codes.append(refused or code)
        return codes

    def _refused(self, condition: Any, id: str, incoming: Names) -> str | None:
        is_there = id in self.held
        if condition is None:
            return None
        if isinstance(condition, CreateOnly):
            return "exists" if is_there else None
        if isinstance(condition, MustExist):
            return None if is_there else "missing"
        row = self.shown(id) if is_there else {}
        if isinstance(condition, Equals):
            met = is_there and all(row.get(n) == v for n, v in condition.expected.items())
        else:
            met = holds(condition, row, incoming) is True
        return None if met else "differs" if is_there else "missing"

    def apply(self, request: Request, codes: Sequence[str]) -> None:
        done = iter(codes)
        for row in request.upserts:
            if next(done) == "written":
                self.held[row["id"]] = {}
                self.patch(row)
        for row in request.patches:
            if next(done) == "written":
                self.patch(row)
        for id in request.deletes:
            if next(done) == "deleted":
                self.held.pop(id, None)

    def patch(self, row: Names) -> None:
        held = self.held[row["id"]]
        for name, value in row.items():
            if name != "id":
                held[self.schema[name][0]] = value


# What is read.


def plain(table: pa.Table | Iterable[pa.RecordBatch], types: Mapping[str, str]) -> list[Names]:
    """Return rows as dicts, with what was written."""
    batches = [table] if isinstance(table, pa.Table) else list(table)
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        for name, value in row.items():
            if types.get(name) == "json" and value is not None:
                row[name] = json.loads(value)
    return rows


def full(row: Names, names: Iterable[str]) -> Names:
    return {"id": row["id"], **{name: row.get(name) for name in names}}


def in_order(rows: list[Names], terms: Sequence[tuple[str, str]]) -> list[Names]:
    """Return rows by some attributes, what has none of it last; then by id."""

    def compare(one: Names, other: Names) -> int:
        for name, direction in [*terms, ("id", "asc")]:
            a, b = one.get(name), other.get(name)
            if isinstance(a, str) and isinstance(b, str):
                a, b = a.encode(), b.encode()
            if isinstance(a, UUID) and isinstance(b, UUID):
                a, b = a.bytes, b.bytes
            if a is None or b is None:
                if (a is None) != (b is None):
                    return 1 if a is None else -1
            elif a != b:
                return (1 if a > b else -1) * (-1 if direction == "desc" else 1)
        return 0

    return sorted(rows, key=cmp_to_key(compare))


def check_all(view: Documents | DocumentView, model: Model, schema: Schema | None = None) -> None:
    """Read everything, in every plain way."""
    model = Model(model.schema if schema is None else schema, model.next_id, model.held)
    names, rows = model.types, model.rows()
    wanted = [full(row, names) for row in rows]
    assert view.get_many(IDS) == [model.shown(i) if i in model.held else None for i in IDS]
    assert [view.get(id) for id in IDS[:4]] == view.get_many(IDS[:4])
    assert view.count() == len(rows)
    assert plain(view.scan(), names) == wanted
    assert plain(view.scan(reverse=True), names) == wanted[::-1]
    assert plain(view.query(), names) == wanted


def check_query(view: Documents | DocumentView, model: Model, rng: Random) -> None:
    """Ask one thing in several ways, as pages too."""
    types = model.types
    where = rng.choice([None, a_filter(rng, types), a_filter(rng, types)])
    ordered = ["id", *(name for name, type in types.items() if type in ORDERED)]
    terms = [(name, rng.choice(["asc", "desc"])) for name in some(rng, ordered, 2)]
    columns = rng.choice([None, some(rng, [*types], 3)])
    low, high = sorted(rng.sample(IDS, 2), key=str.encode)
    matching = [row for row in model.rows() if where is None or holds(where, row)]
    names = types if columns is None else columns
    wanted = [full(row, names) for row in in_order(matching, terms)]
    asked: dict[str, Any] = {"where": where, "order_by": terms or None, "columns": columns}
    assert view.count(where) == len(matching)
    assert plain(view.query(**asked), types) == wanted
    limit = rng.randint(1, 4)
    pages = [view.query(**asked, limit=limit)]
    while token := (pages[-1].schema.metadata or {}).get(b"reef:after"):
        assert pages[-1].num_rows == limit
        after = rng.choice([pages[-1], token.decode()])
        pages.append(view.query(**asked, limit=limit, after=after))
    assert [row for page in pages for row in plain(page, types)] == wanted
    inside = [r for r in matching if low.encode() <= r["id"].encode() < high.encode()]
    for reverse in (False, True):
        found = view.scan(where=where, columns=columns, start=low, end=high, reverse=reverse)
        assert plain(found, types) == [full(r, names) for r in inside[:: -1 if reverse else 1]]


def check_search(view: Documents | DocumentView, model: Model, rng: Random) -> None:
    """Ask for the nearest, if there are vectors."""
    types = model.types
    if "vector" not in types:
        return
    where = rng.choice([None, a_filter(rng, types)])
    x, y = rng.choice(VALUES["vector[2]"])
    rows = [row for row in model.rows() if where is None or holds(where, row)]
    far = {
        r["id"]: (r["vector"][0] - x) ** 2 + (r["vector"][1] - y) ** 2
        for r in rows
        if "vector" in r
    }
    wanted = sorted(far, key=lambda id: (far[id], id.encode()))[: (limit := rng.randint(1, 5))]
    found = view.query(vector=[x, y], metric="l2", where=where, limit=limit, columns=["vector"])
    assert found["id"].to_pylist() == wanted
    assert found["vector"].to_pylist() == [model.shown(id)["vector"] for id in wanted]


def check_sql(view: Documents | DocumentView, model: Model, rng: Random) -> None:
    """Ask in SQL for what has the same type there."""
    kinds = ("int64", "float64", "string", "bool", "bytes")
    names = [name for name, type in model.types.items() if type in kinds]
    rows = model.rows()
    shown = ", ".join(f'"{name}"' for name in ["id", *some(rng, names, 3)])
    found = view.sql(f"select {shown} from docs order by id")
    assert found.to_pylist() == [full(row, found.column_names[1:]) for row in rows]
    if not names:
        return
    name = rng.choice(names)
    value = rng.choice(VALUES[model.types[name]])
    found = view.sql(
        f'select count(*) as n, count("{name}") as m from docs where "{name}" <> ?', [value]
    )
    count = sum(holds((name, "NotEq", value), row) is True for row in rows)
    assert found.to_pylist() == [{"n": count, "m": count}]


def check_aggregates(view: Documents | DocumentView, model: Model, rng: Random) -> None:
    """Add up all there is, in all or by groups."""
    types = model.types
    where = rng.choice([None, a_filter(rng, types)])
    rows = [row for row in model.rows() if where is None or holds(where, row)]
    asked: dict[str, Any] = {"rows there": "count", "last": ("max", "id")}
    for name, type in types.items():
        asked[f"count {name}"] = ("count", name)
        if type in ORDERED:
            asked[f"min {name}"], asked[f"max {name}"] = ("min", name), ("max", name)
        if type == "float64":  # whole numbers may be too large to add up
            asked[f"sum {name}"], asked[f"avg {name}"] = ("sum", name), ("avg", name)
    group = rng.choice([None, *(name for name, type in types.items() if type in ORDERED)])
    groups: dict[Value, list[Names]] = {}
    if group is None:
        groups[None] = rows
    else:
        for row in in_order(rows, [(group, "asc")]):
            groups.setdefault(row.get(group), []).append(row)
    found = view.aggregate(asked, group_by=group, where=where).to_pylist()
    assert [row.get(group) for row in found] == [*groups]
    for row, members in zip(found, groups.values(), strict=True):
        for name, what in asked.items():
            assert row[name] == aggregate(what, members), (name, members)


def aggregate(what: str | tuple[str, str], rows: list[Names]) -> Value:
    if isinstance(what, str):
        assert what == "count"
        return len(rows)
    function, name = what
    values = [row[name] for row in rows if row.get(name) is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("min", "max"):
        key = {str: str.encode, UUID: lambda u: u.bytes}.get(type(values[0]), lambda v: v)
        return (min if function == "min" else max)(values, key=key)
    return sum(values) if function == "sum" else sum(values) / len(values)
