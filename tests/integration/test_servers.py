"""The servers that the other tests stand on: they work, stay on loopback and die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
import sqlalchemy
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import AzureStore, S3Store

from tests.support.servers import object_stores, process
from tests.support.servers.databases import Database, MariaDB, PostgreSQL
from tests.support.servers.object_stores import (
    ACCESS_KEY_ID,
    REGION,
    REPO,
    SECRET_ACCESS_KEY,
    Azurite,
    Moto,
    Rclone,
    S3Server,
    SeaweedFS,
    s3_client,
)
from tests.support.servers.process import Server, ServerError
from tests.support.servers.proxy import CONDITIONS, Fault, Proxy
from tests.support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.servers

ALL = ["seaweedfs", "moto", "rclone", "azurite", "postgresql", "mariadb"]
ATTEMPTS_ONE = {"max_retries": 0}


def s3_store(server: S3Server | Proxy, bucket: str, **options: object) -> S3Store:
    """Return a client that makes one attempt and asks for conditional writes."""
    return S3Store(
        bucket,
        endpoint=server.endpoint,
        region=REGION,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        virtual_hosted_style_request=False,
        conditional_put="etag",
        client_options={"allow_http": True, **options},
        retry_config=ATTEMPTS_ONE,
    )


def azure_store(server: Azurite, bucket: str) -> AzureStore:
    return AzureStore(
        bucket,
        endpoint=server.endpoint,
        account_name=server.account,
        account_key=server.account_key,
        client_options={"allow_http": True},
        retry_config=ATTEMPTS_ONE,
    )


def server_of(request: pytest.FixtureRequest, name: str) -> Any:
    return request.getfixturevalue(name)


# --- each server does what it is there for -------------------------------------------------------


@pytest.mark.parametrize("name", ["seaweedfs", "moto", "rclone", "azurite"])
def test_object_round_trip(request: pytest.FixtureRequest, name: str) -> None:
    server = server_of(request, name)
    bucket = server.make_bucket("round-trip")
    store = (azure_store if isinstance(server, Azurite) else s3_store)(server, bucket)
    body = os.urandom(3 << 20)
    obstore.put(store, "a/b", body)
    assert bytes(obstore.get(store, "a/b").bytes()) == body
    if name != "rclone":  # which answers every range with the whole object
        assert bytes(obstore.get_range(store, "a/b", start=1000, length=50)) == body[1000:1050]
    assert [meta["path"] for meta in obstore.list(store).collect()] == ["a/b"]
    obstore.delete(store, "a/b")
    assert not obstore.list(store).collect()


@pytest.mark.parametrize("name", ["seaweedfs", "moto", "azurite"])
def test_second_create_is_refused(request: pytest.FixtureRequest, name: str) -> None:
    server = server_of(request, name)
    bucket = server.make_bucket("create")
    store = (azure_store if isinstance(server, Azurite) else s3_store)(server, bucket)
    obstore.put(store, "k", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "k", b"second", mode="create")
    assert bytes(obstore.get(store, "k").bytes()) == b"first"


def test_rclone_takes_every_conditional_create(rclone: Rclone) -> None:
    store = s3_store(rclone, rclone.make_bucket("create"))
    obstore.put(store, "k", b"first", mode="create")
    obstore.put(store, "k", b"second", mode="create")
    assert bytes(obstore.get(store, "k").bytes()) == b"second"


@pytest.mark.parametrize("name", ["seaweedfs", "rclone"])
def test_wrong_secret_is_refused(request: pytest.FixtureRequest, name: str) -> None:
    server = server_of(request, name)
    server.make_bucket("secret")
    options = {"endpoint": server.endpoint, "region": REGION, "access_key_id": ACCESS_KEY_ID}
    store = S3Store(
        "secret",
        **options,
        secret_access_key="wrong",
        client_options={"allow_http": True},
        retry_config=ATTEMPTS_ONE,
    )
    with pytest.raises(obstore.exceptions.BaseError, match=r"403|denied|signature"):
        obstore.put(store, "k", b"x")


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_sql_round_trip(request: pytest.FixtureRequest, name: str) -> None:
    server = server_of(request, name)
    assert isinstance(server, Database)
    engine = sqlalchemy.create_engine(server.make_database("round_trip"))
    table = sqlalchemy.Table(
        "t", sqlalchemy.MetaData(), sqlalchemy.Column("k", sqlalchemy.String(20), primary_key=True)
    )
    try:
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), [{"k": "a"}])
        with pytest.raises(sqlalchemy.exc.IntegrityError), engine.begin() as connection:
            connection.execute(table.insert(), [{"k": "a"}])
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.select(table.c.k)).scalars().all() == ["a"]
    finally:
        engine.dispose()


def test_urls_quote_their_values(seaweedfs: SeaweedFS, azurite: Azurite) -> None:
    assert seaweedfs.url("bucket", "some/prefix") == (
        f"s3://bucket/some/prefix?endpoint=http%3A%2F%2F127.0.0.1%3A{seaweedfs.port}"
        "&region=us-east-1&access_key_id=reef-test&secret_access_key=reef%2Ftest%2Bsecret%3D%3D"
    )
    assert azurite.url("box").startswith(
        f"az://box/?endpoint=http%3A%2F%2F127.0.0.1%3A{azurite.port}%2Fdevstoreaccount1&account_name="
    )
    assert seaweedfs.fresh_url() != seaweedfs.fresh_url()


# --- where they listen ---------------------------------------------------------------------------


def listening(server: Server) -> list[tuple[str, int]]:
    """Return the address, in the kernel's hex, and the port of each TCP socket it listens on."""
    inodes = set()
    for pid in server.pids():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(fd)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16)))
    return found


@pytest.mark.parametrize("name", ALL)
def test_binds_to_loopback_on_its_own_ports_only(request: pytest.FixtureRequest, name: str) -> None:
    server = server_of(request, name)
    # SeaweedFS opens the last of its ports after it has begun to serve.
    until(lambda: len(listening(server)) == len(server.ports), f"{name} listens on all its ports")
    assert sorted(listening(server)) == [("0100007F", port) for port in sorted(server.ports)]


def test_two_of_a_kind_run_side_by_side(seaweedfs: SeaweedFS) -> None:
    with SeaweedFS() as other:
        assert not set(other.ports) & set(seaweedfs.ports)
        s3_client(other.endpoint).create_bucket(Bucket="only-there")
        names = [b["Name"] for b in s3_client(seaweedfs.endpoint).list_buckets()["Buckets"]]
        assert "only-there" not in names


# --- how they end --------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


START_AND_HANG = """
import sys, threading
from tests.support.servers.databases import MariaDB, PostgreSQL
from tests.support.servers.object_stores import Azurite, Moto, Rclone, SeaweedFS
server = {kind}()
starter = threading.Thread(target=server.start)  # ends before the process does: a death signal
starter.start()                                  # that followed the thread would come too early
starter.join()
server.round_trip()
print(server.folder, *server.ports, "pids", *server.pids(), flush=True)
sys.stdin.read()  # until it is killed, or the test run is gone
"""


@pytest.mark.parametrize("kind", [SeaweedFS, Moto, Rclone, Azurite, PostgreSQL, MariaDB])
def test_dies_with_its_parent_killed(kind: type[Server]) -> None:
    """kill -9 of the process that started a server leaves no process, no folder and no socket."""
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG.format(kind=kind.__name__)],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        words = parent.stdout.readline().split()
        assert words, "the server did not start"
        at = words.index("pids")
        folder, ports, pids = words[0], words[1:at], [int(word) for word in words[at + 1 :]]
        assert alive(pids[0])
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not any(alive(pid) for pid in pids), f"{kind.__name__} is gone")
    until(lambda: not Path(folder).exists(), "its folder is gone")
    until(lambda: not litter(ports), "its sockets are gone")


def litter(ports: list[str]) -> list[Path]:
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]


def test_dies_with_its_tether_killed() -> None:
    with Moto() as server:
        (pid,) = server.pids()
        stat = Path(f"/proc/{pid}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        until(lambda: not alive(pid), "moto is gone")


@pytest.mark.parametrize("kind", [SeaweedFS, PostgreSQL])
def test_stop_leaves_nothing(kind: type[Server]) -> None:
    with kind() as server:
        pids, folder = server.pids(), server.folder
    until(lambda: not any(alive(pid) for pid in pids), "its processes are gone")
    assert not folder.exists()
    assert not litter([str(port) for port in server.ports])


# --- what they say when they cannot --------------------------------------------------------------


def test_missing_program_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ServerError, match="weed is not installed: run make setup"):
        SeaweedFS().start()


def test_missing_azurite_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(object_stores, "REPO", tmp_path)
    with pytest.raises(ServerError, match="run make setup"):
        Azurite().start()


def test_a_server_that_ends_at_once_shows_its_log() -> None:
    class Broken(Moto):
        def command(self) -> list[str]:
            return [*super().command(), "--no-such-option"]

    server = Broken()
    with pytest.raises(ServerError, match=r"exit code 2(?s:.*)no-such-option"):
        server.start()
    assert not server.folder.exists()


# --- the proxy -----------------------------------------------------------------------------------


def test_stripped_of_conditions_every_create_succeeds(
    seaweedfs: SeaweedFS, unconditional: Proxy
) -> None:
    bucket = seaweedfs.make_bucket("stripped")
    through, direct = s3_store(unconditional, bucket), s3_store(seaweedfs, bucket)
    obstore.put(through, "k", b"first", mode="create")
    obstore.put(through, "k", b"second", mode="create")
    assert bytes(obstore.get(direct, "k").bytes()) == b"second"
    with pytest.raises(AlreadyExistsError):
        obstore.put(direct, "k", b"third", mode="create")
    assert bytes(obstore.get(through, "k").bytes()) == b"second"


def test_boto3_creates_pass_the_stripping_proxy_too(
    seaweedfs: SeaweedFS, unconditional: Proxy
) -> None:
    bucket = seaweedfs.make_bucket("stripped-boto")
    client = s3_client(unconditional.endpoint)
    for body in (b"first", b"second"):
        client.put_object(Bucket=bucket, Key="a key+with~quoting", Body=body, IfNoneMatch="*")
    got = client.get_object(Bucket=bucket, Key="a key+with~quoting")["Body"].read()
    assert got == b"second"


def test_without_stripping_the_second_create_is_refused(
    seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy
) -> None:
    store = s3_store(seaweedfs_proxy, seaweedfs.make_bucket("kept"))
    obstore.put(store, "k", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "k", b"second", mode="create")
    assert [exchange.status for exchange in seaweedfs_proxy.exchanges] == [200, 412]


def test_stripping_can_be_switched_while_running(
    seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy
) -> None:
    store = s3_store(seaweedfs_proxy, seaweedfs.make_bucket("switched"))
    obstore.put(store, "k", b"first", mode="create")
    seaweedfs_proxy.strip = CONDITIONS
    obstore.put(store, "k", b"second", mode="create")
    seaweedfs_proxy.strip = frozenset()
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "k", b"third", mode="create")


@pytest.mark.parametrize(
    ("fault", "committed", "statuses"),
    [
        (Fault.REPLY_LOST, True, [None]),
        (Fault.ERROR_AFTER, True, [500]),
        (Fault.ERROR_BEFORE, False, [500]),
        (Fault.CONFLICT_BEFORE, False, [409]),
    ],
)
def test_fault_befalls_one_request(
    seaweedfs: SeaweedFS,
    seaweedfs_proxy: Proxy,
    fault: Fault,
    committed: bool,
    statuses: list[int | None],
) -> None:
    bucket = seaweedfs.make_bucket(f"fault-{fault.name.lower().replace('_', '-')}")
    store, direct = s3_store(seaweedfs_proxy, bucket), s3_store(seaweedfs, bucket)
    seaweedfs_proxy.inject(fault, "PUT", part="struck")
    obstore.put(store, "spared", b"0", mode="create")
    seaweedfs_proxy.exchanges.clear()
    expected = AlreadyExistsError if fault is Fault.CONFLICT_BEFORE else GenericError
    with pytest.raises(expected):
        obstore.put(store, "struck", b"1", mode="create")
    assert [exchange.status for exchange in seaweedfs_proxy.exchanges] == statuses
    assert [exchange.fault for exchange in seaweedfs_proxy.exchanges] == [fault]
    present = {meta["path"] for meta in obstore.list(direct).collect()}
    assert ("struck" in present) is committed
    if not committed:
        obstore.put(store, "struck", b"2", mode="create")  # the fault is used up


def test_stalled_write_lands_when_released(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    """A write whose author gave up reaches the server later all the same."""
    bucket = seaweedfs.make_bucket("stall-before")
    store, direct = s3_store(seaweedfs_proxy, bucket, timeout="10s"), s3_store(seaweedfs, bucket)
    rule = seaweedfs_proxy.inject(Fault.STALL_BEFORE)
    with pytest.raises(GenericError):
        obstore.put(store, "late", b"late", mode="create")
    rule.wait_until_met()
    assert not obstore.list(direct).collect()
    rule.release()
    until(lambda: bool(obstore.list(direct).collect()), "the late write is there")
    assert bytes(obstore.get(direct, "late").bytes()) == b"late"


def test_stalled_answer_comes_when_released(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    bucket = seaweedfs.make_bucket("stall-after")
    store, direct = s3_store(seaweedfs_proxy, bucket), s3_store(seaweedfs, bucket)
    rule = seaweedfs_proxy.inject(Fault.STALL_AFTER)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(obstore.put, store, "k", b"x", mode="create")
        rule.wait_until_met()
        assert bytes(obstore.get(direct, "k").bytes()) == b"x"
        assert not put.done()
        rule.release()
        assert put.result(DEADLINE_SECONDS)["e_tag"]


def test_proxy_passes_what_clients_send(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    """Uploads in parts, large bodies, ranges, lists, HEAD and DELETE, over connections kept open."""
    bucket = seaweedfs.make_bucket("passed")
    store = s3_store(seaweedfs_proxy, bucket)
    body = os.urandom(12 << 20)
    obstore.put(store, "big", body, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "big").bytes()) == body
    assert bytes(obstore.get_range(store, "big", start=7, length=9)) == body[7:16]
    assert obstore.head(store, "big")["size"] == len(body)
    client = s3_client(seaweedfs_proxy.endpoint)
    client.put_object(Bucket=bucket, Key="sum", Body=b"abc", ChecksumAlgorithm="CRC32")
    assert client.get_object(Bucket=bucket, Key="sum")["Body"].read() == b"abc"
    assert [meta["path"] for meta in obstore.list(store).collect()] == ["big", "sum"]
    obstore.delete(store, "big")
    statuses = {exchange.status for exchange in seaweedfs_proxy.exchanges}
    assert statuses <= {200, 204, 206}
    assert {exchange.method for exchange in seaweedfs_proxy.exchanges} >= {"PUT", "POST", "HEAD"}


def test_proxy_passes_chunked_bodies(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    """A body without a length goes through with its chunks, and a signature that fits is made."""
    import http.client

    from tests.support.servers.proxy import _signed

    bucket = seaweedfs.make_bucket("chunked")
    host = f"127.0.0.1:{seaweedfs_proxy.port}"
    pieces = [os.urandom(70_000), b"x", os.urandom(3)]
    headers = dict(_signed("PUT", f"/{bucket}/k", [("Host", host), ("If-None-Match", "*")]))
    seaweedfs_proxy.strip = CONDITIONS
    connection = http.client.HTTPConnection(host, timeout=DEADLINE_SECONDS)
    for _ in range(2):  # on one connection
        connection.request("PUT", f"/{bucket}/k", iter(pieces), headers, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
    connection.close()
    got = obstore.get(s3_store(seaweedfs, bucket), "k").bytes()
    assert bytes(got) == b"".join(pieces)


def test_proxy_carries_racing_creators(seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy) -> None:
    """Many threads at once, one winner a round: the proxy mixes nothing up.

    Not with moto, which looks whether a name is taken and then takes it, in a thread for each
    request: of two creators at once both can win.
    """
    bucket = seaweedfs.make_bucket("racing")
    with ThreadPoolExecutor(8) as pool:
        store = s3_store(seaweedfs_proxy, bucket)
        start = threading.Barrier(8)

        def create(key: str, mine: bytes) -> bytes | None:
            start.wait(DEADLINE_SECONDS)
            try:
                obstore.put(store, key, mine, mode="create")
            except AlreadyExistsError:
                return None
            return mine

        for turn in range(10):
            bodies = [f"{turn}-{racer}".encode() for racer in range(8)]
            won = [body for body in pool.map(create, [f"k{turn}"] * 8, bodies) if body]
            assert won == [bytes(obstore.get(store, f"k{turn}").bytes())]
