"""Options of a command from the fields of an Options struct, and back."""

from __future__ import annotations

import pytest

from reef import jobs
from reef.cli import run
from reef.cli.arguments._struct_options import StructOptions
from reef.errors import InvalidInputError


def options(name: str) -> StructOptions:
    return StructOptions.of(name if "." in name else f"reef.jobs.{name}")


def given(of: StructOptions, **values: object) -> object:
    """Return the struct when only these are on the command line."""
    return of.make(**{field.name: values.get(field.name) for field in of.fields})


STRUCTS = [f"reef.jobs.{name}" for name in jobs.__all__ if name.endswith("Options")]


@pytest.mark.parametrize("name", [*STRUCTS, "reef.spark.files.IngestOptions"])
def test_every_field_is_an_option_with_a_help_text(name: str) -> None:
    found = options(name)
    assert given(found) == found.struct()
    assert all(field.help for field in found.fields)
    assert all(field.option.startswith("--") for field in found.fields)


def test_texts_become_values() -> None:
    found = options("CompactionOptions")
    made = given(
        found, memory_bytes="1GiB", start="k", full=True, keep_floor=True, bottom_codec="zstd"
    )
    assert made == jobs.CompactionOptions(
        memory_bytes=1 << 30, start=b"k", full=True, keep_floor=True, bottom_codec="zstd"
    )


def test_a_field_that_two_structs_share_is_one_option() -> None:
    made = given(options("RebuildOptions"), task_bytes="1MiB", small_objects=7)
    assert made == jobs.RebuildOptions(
        fold=jobs.IndexOptions(task_bytes=1 << 20),
        verify=jobs.VerifyOptions(task_bytes=1 << 20, small_objects=7),
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"memory_bytes": "1"}, "--memory"),
        ({"bottom_codec": "gzip"}, "--bottom-codec"),
        ({"max_bytes": "much"}, "--max-bytes"),
        ({"min_input_files": -1}, "--min-input-files"),
    ],
)
def test_an_error_names_the_option(values: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{says}"):
        given(options("CompactionOptions"), **values)


def test_the_help_of_an_option_that_two_structs_share_says_whose_default_is_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rebuild", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "[default: 256MiB for fold, 128MiB for verify]" in text


def test_the_help_of_a_command_has_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compact", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--group-size SIZE" in text
    assert "[default: 8GiB]" in text
    assert "--keep-floor Drop no version that can be read now." in text
