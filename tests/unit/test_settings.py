"""Settings: which source wins, and refusals that name the setting, the value and what is allowed."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import InvalidInputError
from reef.format import SegmentOptions
from reef.settings import (
    _PARSERS,
    Settings,
    load_settings,
    override,
    parse_bytes,
    parse_choice,
    parse_flag,
    parse_int,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (3, 3.0),
        (0.25, 0.25),
        (0.00001, 0.00001),  # written 1e-05 by Python
        ("5ms", 0.005),
        ("7us", 7e-6),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        (" 5 ms ", 0.005),
        ("12", 12.0),
    ],
)
def test_durations(value: object, seconds: float) -> None:
    assert parse_seconds("pause", value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ms",
        "-1s",
        "1 year",
        "1e3",
        "1,5s",
        "0x10",
        "9" * 400 + "d",
        "nan",
        "inf",
        None,
        True,
        -1,
        -0.5,
        math.nan,
        math.inf,
        [],
        "1s2s",
        "5MS",
    ],
)
def test_a_bad_duration_names_the_setting_the_value_and_what_is_allowed(value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_seconds("pause", value)
    assert "pause = " in str(caught.value)
    assert "5ms or 7d" in str(caught.value)


def test_a_duration_has_bounds() -> None:
    assert parse_seconds("pause", "1s", low=1.0, high=1.0) == 1.0
    for value in ("999ms", "1001ms"):
        with pytest.raises(InvalidInputError, match="from 1s to 1s"):
            parse_seconds("pause", value, low=1.0, high=1.0)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        ("4 MB", 4_000_000),
        ("1.5KiB", 1536),
        ("2GiB", 2 << 30),
        ("1TB", 10**12),
        (2**50, 2**50),
    ],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_bytes("buffer", value, 0, 2**60) == size


@pytest.mark.parametrize(
    "value",
    ["", "KiB", "-1", "1.5", "0.1KiB", "1kib", "1K", "9" * 400, None, True, -1, math.nan, math.inf],
)
def test_a_bad_size_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"buffer = .* a size from 0 to 1000 bytes"):
        parse_bytes("buffer", value, 0, 1000)


def test_a_size_has_bounds() -> None:
    assert parse_bytes("buffer", "10", 10, 10) == 10
    for value in (9, 11):
        with pytest.raises(InvalidInputError):
            parse_bytes("buffer", value, 10, 10)


@pytest.mark.slow
@given(st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.booleans(), st.none()))
def test_whatever_is_given_a_value_in_bounds_or_one_refusal(value: Any) -> None:
    for parse in (
        lambda: parse_seconds("s", value, 0.0, 100.0),
        lambda: parse_bytes("s", value, 0, 100),
        lambda: parse_int("s", value, 0, 100),
        lambda: float(parse_flag("s", value)),
    ):
        with contextlib.suppress(InvalidInputError):
            assert 0 <= parse() <= 100


@pytest.mark.parametrize(("value", "number"), [(5, 5), ("5", 5), (0, 0), ("10", 10)])
def test_whole_numbers(value: object, number: int) -> None:
    assert parse_int("count", value, 0, 10) == number


@pytest.mark.parametrize("value", ["", "x", 11, -1, "1.5", 1.5, True, None, "9" * 5000])
def test_a_bad_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"count = .* a whole number from 0 to 10"):
        parse_int("count", value, 0, 10)


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ("on", True),
        ("ON", True),
        ("true", True),
        ("yes", True),
        ("1", True),
        (True, True),
        ("off", False),
        ("False", False),
        ("no", False),
        ("0", False),
        (False, False),
    ],
)
def test_flags(value: object, flag: bool) -> None:
    assert parse_flag("sync", value) is flag


@pytest.mark.parametrize("value", ["", "maybe", None, 2])
def test_a_bad_flag_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"sync = .* on or off"):
        parse_flag("sync", value)


def test_choices() -> None:
    assert parse_choice("cas", "native", ("native", "two-phase")) == "native"
    with pytest.raises(
        InvalidInputError, match=r"cas = 'other': expected one of native, two-phase"
    ):
        parse_choice("cas", "other", ("native", "two-phase"))


def test_defaults_without_any_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings({}, {}) == Settings()
    assert load_settings({}, {"REEF_CONFIG": ""}) == Settings()


def test_arguments_win_over_variables_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "reef.toml"
    file.write_text('cas_max_retries = 1\ncas_backoff = "1s-2s"\n')
    assert load_settings({}, {}, file) == Settings(1, (1.0, 2.0))
    environ = {"REEF_CAS_MAX_RETRIES": "2"}
    assert load_settings({}, environ, file) == Settings(2, (1.0, 2.0))
    assert load_settings({"cas_max_retries": 3}, environ, file) == Settings(3, (1.0, 2.0))


def test_the_file_is_found_by_variable_or_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.toml").write_text("cas_max_retries = 5\n")
    environ = {"REEF_CONFIG": str(tmp_path / "other.toml")}
    assert load_settings({}, environ).cas_max_retries == 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reef.toml").write_text("cas_max_retries = 6\n")
    assert load_settings({}, {}).cas_max_retries == 6


@pytest.mark.parametrize(
    "value", ["1ms-100ms", [0.001, 0.1], ("1ms", 0.1), ["1ms", "100ms"], (0.001, "0.1s")]
)
def test_backoff_is_two_durations(value: object) -> None:
    assert load_settings({"cas_backoff": value}, {}).cas_backoff == pytest.approx((0.001, 0.1))


@pytest.mark.parametrize(
    "value", ["1ms", "5ms-1ms", [1], [1, 2, 3], "a-b", [True, 1], "1ms-inf", 3]
)
def test_a_bad_backoff_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInputError, match="cas_backoff = "):
        load_settings({"cas_backoff": value}, {})


@pytest.mark.parametrize("value", [-1, 1001, "many", None, 2.5])
def test_a_bad_number_of_retries_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"cas_max_retries = .* from 0 to 1000"):
        load_settings({"cas_max_retries": value}, {})


def test_an_unknown_setting_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no setting 'cas_retries'.*cas_max_retries"):
        load_settings({"cas_retries": 3}, {})
    file = tmp_path / "reef.toml"
    file.write_text("[store]\ncas_max_retries = 3\n")
    with pytest.raises(InvalidInputError, match="no setting 'store'"):
        load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("REEF_GC_GRCE", "REEF_GC_GRACE"),
        ("REEF_gc_grace", "REEF_GC_GRACE"),
        ("REEF_CONFIGURATION", "REEF_CONFIG"),
        ("REEF_BLOCK_CACHE_SIZE", "REEF_BLOCK_CACHE_BYTES"),
        ("REEF_", None),
        ("REEF_QQQQ", None),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_that_there_is(
    variable: str, meant: str | None
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load_settings({}, {"PATH": "/bin", "REEF_GC_GRACE": "1s", variable: "1"})
    message = str(refusal.value)
    assert (
        f"the environment variable {variable} names no setting: expected REEF_CONFIG, or REEF_ and"
        in message
    )
    assert ("did you mean" in message) == (meant is not None)
    assert meant is None or message.endswith(f"; did you mean {meant}?")


def test_variables_of_others_are_none_of_ours() -> None:
    others = {"REEFER": "1", "MY_REEF_GC_GRACE": "1", "reef_gc_grace": "1", "REEF": "1"}
    assert load_settings({}, others) == Settings()


def test_an_unknown_setting_is_refused_with_the_nearest_that_there_is() -> None:
    with pytest.raises(InvalidInputError, match=r"did you mean gc_grace\?$"):
        load_settings({"gc_grase": 1}, {})


@pytest.mark.parametrize("content", [b"cas_max_retries =", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused_by_path(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "reef.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"reef\.toml' is not a readable TOML file"):
        load_settings({}, {}, file)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    for environ, path in (({}, tmp_path / "no.toml"), ({"REEF_CONFIG": "/no/such.toml"}, None)):
        with pytest.raises(InvalidInputError, match="a readable TOML file"):
            load_settings({}, environ, path)


CENTURY = 100 * 365 * 86400
PIB = 1 << 50
MiB = 1 << 20

# Of each setting: what it may be, as the value that comes out, and what it may not.
CASES: dict[str, tuple[dict[object, object], list[object]]] = {
    "cas_max_retries": ({0: 0, "1000": 1000}, [-1, 1001]),
    "cas_backoff": ({"0s-1m": (0.0, 60.0)}, ["1m-1s"]),
    "group_commit_window": (
        {0: 0.0, "2ms": 0.002, 10: 10.0, None: None, "none": None},
        ["11s", -1],
    ),
    "group_commit_max_batches": ({1: 1, 1 << 20: 1 << 20}, [0, (1 << 20) + 1, 1.5]),
    "log_segment_max_bytes": (
        {"2KiB": 2048, "4MiB": 4 * MiB, "1GiB": 1 << 30},
        [2047, (1 << 30) + 1],
    ),
    "max_parallel_writes": ({1: 1, "8": 8, None: None, "none": None}, [0, 9, "", True]),
    "write_stall_timeout": ({0: 0.0, "1m": 60.0, CENTURY: CENTURY}, [-1, CENTURY + 1]),
    "memtable_max_bytes": ({2048: 2048, "1MiB": MiB, PIB: PIB}, [2047, PIB + 1]),
    "unfolded_log_max_bytes": ({1: 1, "1MiB": MiB, PIB: PIB}, [0, PIB + 1]),
    "maintenance": ({"auto": "auto", "off": "off"}, ["on", "", None, True]),
    "flush_threshold_bytes": ({1: 1, "1MiB": MiB, PIB: PIB}, [0, PIB + 1]),
    "flush_threshold_slots": ({1: 1, "5000": 5000}, [0, 2**43]),
    "flush_interval": ({0: 0.0, "1h": 3600.0}, [-1, "1y"]),
    "row_block_bytes": ({1: 1, "64KiB": 1 << 16}, [0, "2GiB"]),
    "delta_layer_target_bytes": ({1: 1, "1MiB": MiB, PIB: PIB}, [0, PIB + 1]),
    "image_layer_target_bytes": ({1: 1, "1MiB": MiB, PIB: PIB}, [0, PIB + 1]),
    "compaction_cadence": (
        {"2/1ms": (2, 0.001), "8/10m": (8, 600.0), (4, "60s"): (4, 60.0)},
        ["1/1m", "4/0s", "4", "10m", "4/10m/1", "4/-1", None],
    ),
    "dedup_max_keys": ({0: 0, "10000000": 10_000_000}, [-1, 10_000_001]),
    "dedup_max_age": ({0: 0.0, "7d": 604800.0}, [-1]),
    "block_cache_bytes": ({0: 0, "1MiB": MiB, PIB: PIB}, [-1, PIB + 1]),
    "disk_cache_dir": ({"": "", "/tmp/x": "/tmp/x", Path("/y"): "/y"}, [3, None, b"/x", "a\0b"]),
    "disk_cache_bytes": ({0: 0, "1MiB": MiB, PIB: PIB}, [-1, PIB + 1]),
    "max_staleness": ({0: 0.0, "500ms": 0.5}, [-1]),
    "read_ahead_bytes": ({0: 0, "1MiB": MiB, PIB: PIB}, [-1, PIB + 1]),
    "gc_grace": ({0: 0.0, "15m": 900.0}, [-1, CENTURY + 1]),
    "retained_generations": ({1: 1, "1000000": 1_000_000}, [0, 1_000_001]),
    "pitr_window": ({None: None, "none": None, 0: 0.0, "1h": 3600.0}, [-1, "", "never"]),
    "snapshot_ttl": ({"1ms": 0.001, "1h": 3600.0}, [0, -1]),
}


def test_every_setting_has_a_field_a_parser_and_a_case_here() -> None:
    assert vars(Settings()).keys() == _PARSERS.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_setting_keeps_its_bounds_wherever_it_comes_from(name: str, tmp_path: Path) -> None:
    good, bad = CASES[name]
    for value, expected in good.items():
        assert getattr(load_settings({name: value}, {}), name) == expected
        assert getattr(override(Settings(), {name: value}), name) == expected
        if isinstance(value, str):
            environ = {f"REEF_{name.upper()}": value}
            assert getattr(load_settings({}, environ), name) == expected
            file = tmp_path / "reef.toml"
            file.write_text(f"{name} = {value!r}\n")
            assert getattr(load_settings({}, {}, file), name) == expected
    for value in bad:
        with pytest.raises(InvalidInputError, match=f"{name} = .*: expected "):
            load_settings({name: value}, {})


def test_every_default_is_a_value_that_could_be_given() -> None:
    assert load_settings(vars(Settings()), {}) == Settings()


def test_the_defaults_that_were_agreed() -> None:
    settings = Settings()
    assert (settings.group_commit_window, settings.group_commit_max_batches) == (None, 256)
    assert (settings.max_parallel_writes, settings.pitr_window) == (None, None)
    assert (settings.dedup_max_keys, settings.dedup_max_age) == (10_000, 86400.0)
    assert settings.row_block_bytes == SegmentOptions().row_block_bytes


def test_overriding_leaves_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEF_GC_GRACE", "1h")
    base = Settings(gc_grace=5.0, snapshot_ttl=7.0)
    assert override(base, {}) == base
    changed = override(base, {"snapshot_ttl": "1m", "pitr_window": "1h"})
    assert changed == Settings(gc_grace=5.0, snapshot_ttl=60.0, pitr_window=3600.0)
    assert base == Settings(gc_grace=5.0, snapshot_ttl=7.0)
    with pytest.raises(InvalidInputError, match=r"no setting 'snapshot_age'.*snapshot_ttl"):
        override(base, {"snapshot_age": 1})
