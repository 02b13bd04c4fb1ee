"""`reef check-store`, run as a user runs it, against the real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from reef.store import open_store
from tests.support.servers.object_stores import Azurite, Moto, Rclone, SeaweedFS
from tests.support.servers.proxy import Fault, Proxy

pytestmark = pytest.mark.servers


class Verdict(NamedTuple):
    """What the command said."""

    code: int
    report: dict[str, Any]
    errors: str

    def failed(self) -> dict[str, str]:
        return {c["name"]: c["seen"] for c in self.report["checks"] if c["ok"] is False}

    def seen(self, name: str) -> str:
        (found,) = (c["seen"] for c in self.report["checks"] if c["name"] == name)
        return str(found)


def reef(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reef", *arguments], capture_output=True, text=True, check=False
    )


def check_store(url: str, *, racers: int, rounds: int) -> Verdict:
    done = reef("check-store", url, f"--racers={racers}", f"--rounds={rounds}", "--json")
    assert done.returncode in (0, 2), done.stderr
    return Verdict(done.returncode, json.loads(done.stdout), done.stderr)


def assert_can_back_a_log(verdict: Verdict, racers: int, rounds: int) -> None:
    assert verdict.failed() == {}
    assert (verdict.code, verdict.errors) == (0, "")
    assert verdict.report["can_back_a_log"] is True
    for race in ("racing threads", "racing processes"):
        expected = f"{rounds // 2} rounds of {racers}: one winner each, and its bytes stay"
        assert verdict.seen(race) == expected


def test_seaweedfs_can_back_a_log(seaweedfs: SeaweedFS) -> None:
    url = seaweedfs.fresh_url()
    assert_can_back_a_log(check_store(url, racers=4, rounds=10), 4, 10)
    with open_store(url) as store:
        assert list(store.list()) == []


def test_moto_does_all_that_one_client_can_see(moto: Moto) -> None:
    """It looks and writes in two steps: now and then, on a loaded machine, two racers win."""
    url = moto.fresh_url()
    verdict = check_store(url, racers=4, rounds=10)
    assert verdict.failed().keys() <= {"racing threads", "racing processes"}
    assert verdict.code == (2 if verdict.failed() else 0)
    with open_store(url) as store:
        assert list(store.list()) == []


def test_azurite_can_back_a_log(azurite: Azurite) -> None:
    url = azurite.fresh_url()
    assert_can_back_a_log(check_store(url, racers=8, rounds=20), 8, 20)
    with open_store(url) as store:
        assert list(store.list()) == []


def test_rclone_is_refused_with_the_reason(rclone: Rclone) -> None:
    url = rclone.url(rclone.make_bucket("check-store"))
    done = reef("check-store", url, "--rounds", "10")
    assert done.returncode == 2
    last = done.stdout.splitlines()[-1]
    assert last.startswith("s3://check-store cannot back a log: taken name refused: ")
    assert "ignores If-None-Match" in last
    verdict = check_store(url, racers=8, rounds=10)
    assert verdict.code == 2
    assert verdict.report["can_back_a_log"] is False
    assert "ignores If-None-Match" in verdict.report["reason"]
    for race in ("racing threads", "racing processes"):
        assert "racers were told that they created the object" in verdict.failed()[race]


def test_a_proxy_that_strips_conditions_is_noticed(
    seaweedfs: SeaweedFS, unconditional: Proxy
) -> None:
    url = unconditional.url(seaweedfs.shared_bucket, "check-stripped")
    verdict = check_store(url, racers=4, rounds=10)
    assert verdict.code == 2
    assert {"taken name refused", "racing threads", "racing processes"} == verdict.failed().keys()


def test_two_phase_cas_on_the_same_store_can_back_a_log(
    seaweedfs: SeaweedFS, unconditional: Proxy, tmp_path: Path
) -> None:
    records = quote(f"sqlite:///{tmp_path}/records.db", safe="")
    plain = unconditional.url(seaweedfs.shared_bucket, "check-two-phase")
    url = f"{plain}&cas=two-phase&cas_store={records}"
    assert_can_back_a_log(check_store(url, racers=4, rounds=10), 4, 10)
    with open_store(url) as store:
        assert list(store.list()) == []


def test_lost_replies_are_not_mistaken(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    lost = [
        seaweedfs_proxy.inject(fault, "PUT", "/racing-", times=5)
        for fault in (Fault.REPLY_LOST, Fault.ERROR_AFTER, Fault.CONFLICT_BEFORE)
    ]
    url = seaweedfs_proxy.url(seaweedfs.shared_bucket, "check-lost")
    assert_can_back_a_log(check_store(url, racers=3, rounds=20), 3, 20)
    assert [rule.left for rule in lost] == [0, 0, 0]


def test_a_missing_bucket_and_a_refused_credential_are_usage_errors(
    seaweedfs: SeaweedFS, moto: Moto, azurite: Azurite
) -> None:
    for url, says in (
        (seaweedfs.url("not-there"), "s3://not-there: there is no such bucket"),
        (moto.url("not-there"), "s3://not-there: there is no such bucket"),
        (azurite.url("not-there"), "az://not-there: there is no such bucket"),
        (seaweedfs.fresh_url().replace("test%2Bsecret", "wrong"), "was refused"),
    ):
        done = reef("check-store", url)
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
        assert "secret" not in done.stderr
        assert "Traceback" not in done.stderr
