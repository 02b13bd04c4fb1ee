"""Tasks without Spark: what crosses, how a bucket is opened elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import reef
from reef.engine import Context
from reef.errors import (
    ConditionFailedError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StalePlanError,
)
from reef.jobs import Bucket, InProcess, TaskWire
from reef.jobs._bucket_address import CACHE_BYTES_MAX
from reef.store import open_store


class Ask(msgspec.Struct, frozen=True):
    number: int
    data: bytes = b""


class Other(msgspec.Struct, frozen=True):
    number: int


class Told(msgspec.Struct, frozen=True):
    number: int


class Unpackable(msgspec.Struct, frozen=True):
    what: object


ERRORS = {
    1: CorruptError("segments/a.seg", 3, "abc", "abd"),
    2: ConditionFailedError("rows differ", ("written", "differs")),
    3: StalePlanError("the plan was overtaken"),
}


def increment(context: Context, ask: Ask) -> Told:
    if ask.number in ERRORS:
        raise ERRORS[ask.number]
    return Told(ask.number + 1)


def divide(context: Context, ask: Ask) -> Told:
    return Told(1 // ask.number)


def allocate(context: Context, ask: Ask) -> Told:
    return Told(len(b"x" * ask.number))


@pytest.fixture
def context() -> Context:
    return reef.connect("memory://").context()


def test_outcomes_are_in_order_and_errors_among_them(context: Context) -> None:
    seen: list[tuple[int, int]] = []
    outcomes = InProcess(context).run(
        increment,
        [Ask(number) for number in range(5)],
        Told,
        name="increment",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [outcome.result for outcome in outcomes] == [Told(1), None, None, None, Told(5)]
    for number, error in ERRORS.items():
        crossed = outcomes[number].error
        assert type(crossed) is type(error)
        assert str(crossed) == str(error)
        assert crossed is not error
        with pytest.raises(type(error)):
            outcomes[number].returned()
    assert getattr(outcomes[2].error, "outcomes", None) == ("written", "differs")
    assert outcomes[0].returned() == Told(1)
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_what_is_no_error_of_reef_raises(context: Context) -> None:
    with pytest.raises(ZeroDivisionError):
        InProcess(context).run(divide, [Ask(0)], Told, name="divide")


def test_what_cannot_cross_is_found_in_process_too(context: Context) -> None:
    with pytest.raises(TypeError):
        InProcess(context).run(increment, [Unpackable(object())], Told, name="x")  # type: ignore[type-var,list-item,arg-type]


def test_descriptors_are_of_one_class() -> None:
    with pytest.raises(InvalidInputError, match=r"Ask.*Other"):
        TaskWire.pack(increment, [Ask(1), Other(2)], Told)  # type: ignore[list-item]


def test_no_descriptors_no_outcomes(context: Context) -> None:
    assert InProcess(context).run(increment, [], Told, name="nothing") == []


def test_peak_memory_is_of_the_task_not_of_the_process(context: Context) -> None:
    def peak(size: int) -> int:
        wire, (payload,) = TaskWire.pack(allocate, [Ask(size)], Told)
        return wire.unpack(wire.perform(context, payload, attempt=2)).peak_rss_bytes

    before, large, after = peak(1), peak(256 << 20), peak(1)
    assert large > before + (200 << 20)
    assert after < large - (200 << 20)


def test_a_bucket_opens_once_in_a_process_with_its_settings(tmp_path: Path) -> None:
    url = f"file://{tmp_path}?fsync=off"
    with reef.connect(url, gc_grace=7.0, block_cache_bytes=1 << 30) as db:
        bucket = Bucket.of(db.context())
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(bucket), type=Bucket)
    opened = crossed.open()
    assert opened is crossed.open()
    assert opened is bucket.open()
    assert opened.store.url == url
    assert opened.settings.gc_grace == 7.0
    assert opened.settings.block_cache_bytes == CACHE_BYTES_MAX
    opened.store.put_if_absent("there", b"1")
    assert open_store(url).get("there") == b"1"


def test_a_path_with_blanks_and_percent_signs_survives(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    with reef.connect(folder) as db:
        db.store.put_if_absent("there", b"1")
        assert Bucket.of(db.context()).open().store.get("there") == b"1"


def test_options_of_the_url_survive() -> None:
    url = "s3://bucket/prefix?region=eu-west-1&concurrency=3&skip_signature=true"
    with reef.connect(url) as db:
        bucket = Bucket.of(db.context())
    assert bucket.url == url
    assert bucket.open().store.concurrency == 3


@pytest.mark.parametrize(
    "options",
    [
        "access_key_id=AKIA&secret_access_key=hushhushhush",
        "region=eu-west-1&skip_signature=true&cas=two-phase"
        "&cas_store=postgresql%3A%2F%2Fme%3Ahushhushhush%40127.0.0.1%2Fdb",
    ],
)
def test_credentials_do_not_travel(options: str) -> None:
    with reef.connect(f"s3://bucket?{options}") as db, pytest.raises(InvalidInputError) as raised:
        Bucket.of(db.context())
    assert "AWS_SECRET_ACCESS_KEY" in str(raised.value)
    assert "hushhushhush" not in str(raised.value)


def test_a_bucket_without_a_name_cannot_be_opened_elsewhere(context: Context) -> None:
    with pytest.raises(InvalidInputError):
        Bucket.of(context)


def test_what_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    bucket = Bucket(f"file://{tmp_path}", {})
    with pytest.raises(NotFoundError):
        bucket.open().store.get("nothing")


def test_tasks_need_no_spark() -> None:
    script = "import sys, reef.jobs; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
