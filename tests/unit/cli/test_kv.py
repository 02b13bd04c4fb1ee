"""Commands on keys and values, and on what stays of them: collection and snapshots."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import reef
from reef import cli
from reef.store import FileStore
from tests.support.commands import Run, RunJson
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket

pytestmark = pytest.mark.usefixtures("no_settings")

# Collection and snapshots.


def test_gc_says_and_then_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket(tmp_path / "c", gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush", "flush")
    bucket.compact()
    (tmp_path / "reef.toml").write_text("gc_grace = 0\nretained_generations = 1\n")
    command = ["gc", bucket.url, NAMESPACE, "--json"]
    before = bucket.everything()
    assert cli.run(command) == 0
    planned = json.loads(capsys.readouterr().out)["namespaces"][0]
    assert bucket.everything() == before
    goes = {t["kind"] for t in planned["tallies"] if t["goes"]}
    assert "segment" in goes
    for _ in range(3):
        assert cli.run([*command, "--apply"]) == 0
    assert len(bucket.files("segments")) == 1
    assert bucket.read() == bucket.rows()
    assert cli.run(["verify", bucket.url, NAMESPACE, "--deep", "--in-process"]) == 0
    assert cli.run(["gc", bucket.url, "--all"]) == 0
    assert "would be deleted" in capsys.readouterr().out


def test_gc_of_all_sweeps_the_bucket_once(
    bucket: Bucket, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first namespace cannot be read."""
    with bucket.open() as db:
        for name in ("more", "other"):
            with db.kv(name) as kv:
                kv.put(b"a", b"1")
    ruin = bucket.root / "namespaces" / "a-ruin" / "quarantine"
    ruin.mkdir(parents=True)
    (ruin / "leftover").write_bytes(b"x")
    sweeps: list[int] = []
    monkeypatch.setattr(FileStore, "sweep", lambda _, before_us: sweeps.append(before_us) or ())
    code, report = run_json("gc", "--all")
    assert (code, sweeps) == (2, [])
    code, report = run_json("gc", "--all", "--apply")
    assert [one["applied"] for one in report["namespaces"]] == [False, True, True, True]
    assert len(sweeps) == 1
    assert run_json("gc", "more", "--apply")[0] == 0
    assert len(sweeps) == 2


def test_snapshots_are_created_listed_read_renewed_and_released(
    bucket: Bucket, run: Run, run_json: RunJson
) -> None:
    rows = bucket.rows()
    code, out, err = run("snapshot create", NAMESPACE, "--ttl", "30m", "--id", "before")
    assert (code, out, err) == (0, "before\n", "")
    bucket.write("flush")
    assert bucket.rows() != rows
    code, listed = run_json("snapshot list", NAMESPACE)
    (one,) = listed["snapshots"]
    assert one["id"] == "before"
    code, out, _ = run("kv scan", NAMESPACE, "--snapshot", "before")
    assert out == "".join(f"{k.decode()}\t{rows[k].decode()}\n" for k in sorted(rows))
    code, renewed = run_json("snapshot renew", NAMESPACE, "before", "--ttl", "2h")
    assert renewed["expires_at_us"] > one["expires_at_us"]
    code, renewed = run_json("snapshot renew", NAMESPACE, "before", "--ttl", "none")
    assert renewed["expires_at_us"] is None
    code, out, _ = run("snapshot list", NAMESPACE)
    assert "never" in out
    assert run("snapshot create", NAMESPACE, "--id", "before")[0] == 2
    assert run("snapshot release", NAMESPACE, "before")[0] == 0
    assert run_json("snapshot list", NAMESPACE)[1]["snapshots"] == []
    code, fresh = run_json("snapshot create", NAMESPACE)
    assert fresh["expires_at_us"]
    assert run("kv get", NAMESPACE, "none", "--snapshot", fresh["id"])[0] == 2


# Keys and values.


def test_a_value_comes_back_as_it_was_put(
    bucket: Bucket, run: Run, run_json: RunJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("kv put", "fresh", "greeting", "hällo")
    assert (code, err) == (0, "")
    assert int(out) > 0
    assert run("kv get", "fresh", "greeting") == (0, "hällo\n", "")
    assert run("kv get", "fresh", "greeting", "-n") == (0, "hällo", "")

    binary = bytes(range(256))
    (tmp_path / "value").write_bytes(binary)
    assert run("kv put", "fresh", "file", "--file", str(tmp_path / "value"))[0] == 0
    assert run("kv get", "fresh", b"file".hex(), "--hex") == (0, binary.hex() + "\n", "")
    assert run_json("kv get", "fresh", "file")[1]["value_encoding"] == "base64"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from\0stdin\n")))
    assert run("kv put", "fresh", "stdin", "-")[0] == 0
    assert run_json("kv get", "fresh", "stdin")[1] == {
        "key": "stdin",
        "key_encoding": "text",
        "value": "from\0stdin\n",
        "value_encoding": "text",
    }

    assert run("kv put", "fresh", "00ff", "ff00", "--hex")[0] == 0
    assert run("kv get", "fresh", "AP8=", "--base64") == (0, "/wA=\n", "")
    assert run("kv put", "fresh", "empty", "")[0] == 0
    assert run("kv get", "fresh", "empty") == (0, "\n", "")


def test_a_value_that_is_too_large_is_refused_before_anybody_is_fenced(
    bucket: Bucket, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "reef.toml").write_text('log_segment_max_bytes = "2KiB"\n')
    (tmp_path / "value").write_bytes(bytes(2049))
    epoch = bucket.manifest.writer_epoch
    code, out, err = run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))
    assert (code, out) == (1, "")
    assert "at most log_segment_max_bytes, which is 2048" in err
    # What a record takes beside the value counts.
    (tmp_path / "value").write_bytes(bytes(1025))
    code, out, err = run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))
    assert (code, out) == (1, "")
    assert "KEY and VALUE have 1026 bytes" in err
    assert run("kv delete", NAMESPACE, "k" * 1025)[0] == 1
    (tmp_path / "reef.toml").write_text('memtable_max_bytes = "2KiB"\n')
    assert run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))[0] == 1
    assert bucket.manifest.writer_epoch == epoch
    (tmp_path / "reef.toml").write_text("log_segment_max_bytes = 2050\n")
    assert run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))[0] == 0
    assert bucket.manifest.writer_epoch == epoch + 1


def test_a_key_that_is_not_there(run: Run, run_json: RunJson) -> None:
    assert run("kv put", "fresh", "a", "1")[0] == 0
    code, out, err = run("kv get", "fresh", "b")
    assert (code, out, err) == (2, "", "reef: key 'b' does not exist\n")
    code, out, err = run("kv get", "fresh", "b", "--json")
    assert code == 2
    assert json.loads(out)["value"] is None
    code, receipt = run_json("kv delete", "fresh", "a")
    assert (code, receipt["outcomes"]) == (0, ["deleted"])
    assert run("kv get", "fresh", "a")[0] == 2
    assert run("kv delete", "fresh", "a")[0] == 0


def test_the_same_idempotency_key_writes_once(run: Run, run_json: RunJson) -> None:
    _, first = run_json("kv put", "fresh", "a", "1", "--idempotency-key", "k")
    _, again = run_json("kv put", "fresh", "a", "1", "--idempotency-key", "k")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["lsn"] == again["lsn"]
    assert run("kv put", "fresh", "a", "2", "--idempotency-key", "k")[0] == 1
    _, out, _ = run("kv get", "fresh", "a")
    assert out == "1\n"


def test_reads_of_the_past(bucket: Bucket, run: Run) -> None:
    lsns = [int(run("kv put", "fresh", "a", value)[1]) for value in ("1", "2")]
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[0])) == (0, "1\n", "")
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[1])) == (0, "2\n", "")
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[0] - 1))[0] == 2
    _, out, _ = run("kv scan", NAMESPACE, "--generation", "2", "--keys-only")
    later = [commit.slot for commit in bucket.commits[4:]]
    assert out.split() == sorted(key.decode() for key in bucket.rows(without=later))


def test_scans(bucket: Bucket, run: Run) -> None:
    rows = {key.decode(): value.decode() for key, value in bucket.rows().items()}
    keys = sorted(rows)

    def scan(*options: str) -> list[str]:
        code, out, err = run("kv scan", NAMESPACE, *options)
        assert (code, err) == (0, "")
        return out.splitlines()

    lines = [f"{key}\t{rows[key]}" for key in keys]
    assert scan() == lines
    assert scan("--reverse") == lines[::-1]
    assert scan("--limit", "7") == lines[:7]
    assert scan("--reverse", "--limit", "7") == lines[::-1][:7]
    assert scan("--limit", "100000") == lines
    assert scan("--keys-only") == keys
    low, high = keys[10], keys[30]
    assert scan("--start", low, "--end", high, "--keys-only") == keys[10:30]
    assert scan("--prefix", "k1", "--keys-only") == [key for key in keys if key.startswith("k1")]
    assert scan("--prefix", "none-such") == []
    assert scan("--hex", "--limit", "1") == [
        f"{keys[0].encode().hex()}\t{rows[keys[0]].encode().hex()}"
    ]
    parsed = [json.loads(line) for line in scan("--json")]
    assert {one["key"]: one["value"] for one in parsed} == rows
    assert json.loads(scan("--json", "--keys-only", "--limit", "1")[0]) == {
        "key": keys[0],
        "key_encoding": "text",
    }


def test_writing_takes_over_from_a_running_writer(bucket: Bucket, run: Run) -> None:
    with bucket.open() as db, db.kv(NAMESPACE) as kv:
        kv.put(b"a", b"1")
        assert run("kv get", NAMESPACE, "a") == (0, "1\n", "")  # reading does not
        kv.put(b"a", b"2")
        assert run("kv put", NAMESPACE, "a", "3")[0] == 0
        with pytest.raises(reef.FencedError):
            kv.put(b"a", b"4")
    assert run("kv get", NAMESPACE, "a") == (0, "3\n", "")
