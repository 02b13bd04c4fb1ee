"""Two-phase CAS with its records in real databases, over an object store without conditional writes."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnavailableError,
)
from reef.store import TwoPhaseStore, open_store
from reef.store.two_phase import Record, Records
from tests.support.servers.databases import PASSWORD, Database, MariaDB, PostgreSQL
from tests.support.servers.object_stores import SeaweedFS
from tests.support.servers.proxy import Fault, Proxy
from tests.support.store.two_phase import EVER, LostError, Site, SQLRecordsContract, commit, race

pytestmark = pytest.mark.servers

SERVERS = ["postgresql", "mariadb"]
ALL = ["sqlite", *SERVERS]
KEY = "wal/1"


def fresh_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a database that holds nothing yet."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/cas.db"
    server: Database = request.getfixturevalue(kind)
    return server.make_database(f"cas_{uuid.uuid4().hex}")


@pytest.fixture(params=ALL)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_database(request.param, request, tmp_path)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> PostgreSQL | MariaDB:
    return request.getfixturevalue(request.param)


class TestServerRecords(SQLRecordsContract):
    @pytest.fixture(params=SERVERS)
    def records(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
        url = fresh_database(request.param, request, tmp_path)
        records = Records(url, bucket="s3://bucket/prefix")
        yield records
        records.close()


@pytest.fixture
def open_records(database: str) -> Iterator[Callable[[str], Records]]:
    opened: list[Records] = []

    def open_one(bucket: str = "s3://bucket") -> Records:
        opened.append(Records(database, bucket=bucket))
        return opened[-1]

    yield open_one
    for records in opened:
        records.close()


def test_a_statement_that_waits_is_given_up_on_postgresql(postgresql: PostgreSQL) -> None:
    url = postgresql.make_database(f"cas_{uuid.uuid4().hex}")
    records = Records(url, bucket="b")
    with records._connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "30s"
    impatient = Records(f"{url}?options=-c%20statement_timeout%3D1000", bucket="b")
    with records._engine.connect().execution_options(isolation_level="SERIALIZABLE") as holder:
        holder.exec_driver_sql("LOCK TABLE reef_cas IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(UnavailableError, match="statement timeout"):
            impatient.insert(KEY, ".tmp/a")
        holder.rollback()
    assert records.insert(KEY, ".tmp/b")  # nothing was left of it
    records.close()
    impatient.close()


def test_buckets_do_not_meet(open_records: Callable[[str], Records]) -> None:
    longest = "s3://" + "b" * 250
    for bucket in ("s3://bucket", "s3://Bucket", "s3://bucket-2", longest, longest[:-1]):
        records = open_records(bucket)
        assert records.insert(KEY, ".tmp/a")
        assert [r.destination for r in records.pending()] == [KEY]
        assert records.commit(KEY, ".tmp/a")
    assert open_records("s3://bucket").remove(KEY, ".tmp/a", committed=True)
    assert open_records("s3://Bucket").find(KEY) == Record(KEY, ".tmp/a", True)


def test_clients_that_come_at_once_make_one_table(open_records: Callable[[], Records]) -> None:
    clients = [open_records() for _ in range(6)]

    def insert(racer: int, number: int) -> None:
        if not clients[racer].insert(KEY, f".tmp/{racer}"):
            raise LostError

    [winners] = race(1, len(clients), insert)
    assert len(winners) == 1


def test_racing_creators_have_one_winner_each_round(
    open_records: Callable[[], Records], tmp_path: Path
) -> None:
    site = Site(tmp_path)
    clients = [site.client(records=open_records()) for _ in range(4)]

    def put(racer: int, number: int) -> None:
        try:
            clients[racer].put_if_absent(f"wal/{number}", b"%d" % racer)
        except AlreadyExistsError:
            raise LostError from None

    winners = race(25, len(clients), put)
    assert [len(names) for names in winners] == [1] * 25
    for number, [racer] in enumerate(winners):
        assert site.get(f"wal/{number}") == b"%d" % racer
    assert site.temporaries() == []
    site.close()


def test_racing_clients_of_every_kind_agree(
    open_records: Callable[[], Records], tmp_path: Path
) -> None:
    site = Site(tmp_path)
    clients = [site.client(records=open_records()) for _ in range(4)]

    def act(racer: int, number: int) -> None:
        store = clients[racer]
        if racer >= 2:
            (store.recover if racer == 2 else lambda: store.collect(EVER))()
            raise LostError
        data = b"%d nonce %d" % (racer, number)
        try:
            commit(store, f"wal/{number}", data)
        except ConflictError:
            raise LostError from None

    winners = race(25, len(clients), act)
    assert [len(names) for names in winners] == [1] * 25
    for number, [racer] in enumerate(winners):
        assert site.get(f"wal/{number}") == b"%d nonce %d" % (racer, number)
    clients[0].recover()
    clients[0].collect(EVER)
    assert site.temporaries() == []
    assert list(open_records().pending()) == []
    assert len(list(open_records().committed())) == 25
    site.close()


def test_a_wrong_password_is_refused_and_not_shown(server: Database) -> None:
    wrong = sqlalchemy.make_url(server.url()).set(password="wr:ong/secret")
    records = Records(wrong.render_as_string(hide_password=False), bucket="b")
    with pytest.raises(AccessDeniedError, match=r"access was refused") as caught:
        records.find(KEY)
    assert "wr:ong" not in f"{caught.value} {caught.value.__cause__} {records!r}"
    assert PASSWORD not in str(caught.value)


def test_a_missing_database_is_an_invalid_input(server: Database) -> None:
    records = Records(server.url("no_such_database"), bucket="b")
    with pytest.raises(InvalidInputError, match=r"cannot hold Reef's table reef_cas"):
        records.find(KEY)


def test_another_table_of_that_name_is_an_invalid_input(server: Database) -> None:
    url = server.make_database(f"cas_{uuid.uuid4().hex}")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE reef_cas (id INTEGER)")
    engine.dispose()
    records = Records(url, bucket="b")
    with pytest.raises(InvalidInputError, match=r"cannot hold Reef's table reef_cas"):
        records.insert(KEY, ".tmp/a")
    records.close()


def test_an_account_that_may_not_create_tables_uses_the_one_that_is_there(
    server: Database,
) -> None:
    url = server.make_database(f"cas_{uuid.uuid4().hex}")
    owner = Records(url, bucket="b")
    owner.insert(KEY, ".tmp/a")
    account = f"u{uuid.uuid4().hex[:12]}"
    word = "PASSWORD" if isinstance(server, PostgreSQL) else "IDENTIFIED BY"
    rights = f"INSERT, UPDATE, DELETE ON reef_cas TO {account}"
    as_administrator(server, url, f"CREATE USER {account} {word} 'x'", f"GRANT SELECT, {rights}")
    mine = sqlalchemy.make_url(url).set(username=account, password="x")
    records = Records(mine.render_as_string(hide_password=False), bucket="b")
    assert records.find(KEY) == Record(KEY, ".tmp/a", False)
    assert records.insert("wal/2", ".tmp/b")
    as_administrator(server, url, f"REVOKE DELETE ON reef_cas FROM {account}")
    with pytest.raises(AccessDeniedError):
        records.remove("wal/2", ".tmp/b", committed=False)
    records.close()
    owner.close()


def as_administrator(server: Database, url: str, *statements: str) -> None:
    """Run the statements as whoever may grant: in MariaDB root, who comes by the socket."""
    admin = sqlalchemy.make_url(url)
    if isinstance(server, MariaDB):
        socket = server.folder / "data" / "mariadb.sock"
        admin = sqlalchemy.URL.create(
            "mysql+pymysql", "root", database=admin.database, query={"unix_socket": str(socket)}
        )
    engine = sqlalchemy.create_engine(admin, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_an_option_that_the_driver_does_not_know_is_refused(server: Database) -> None:
    records = Records(f"{server.url()}?colour=red", bucket="b")
    with pytest.raises(InvalidInputError, match=r"colour"):
        records.find(KEY)


def test_connections_that_the_server_closed_are_opened_again(server: Database) -> None:
    url = server.make_database(f"cas_{uuid.uuid4().hex}")
    records, killer = Records(url, bucket="b"), Records(url, bucket="b")
    records.insert(KEY, ".tmp/a")
    killer.find(KEY)
    close_others(killer, server)
    assert records.commit(KEY, ".tmp/a")
    records.close()
    killer.close()


def close_others(records: Records, server: Database) -> None:
    """Close every connection to the database but this one, as an idle timeout would."""
    with records._engine.connect() as connection:
        if isinstance(server, PostgreSQL):
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).all()
            return
        for (thread,) in connection.exec_driver_sql(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        ).all():
            connection.exec_driver_sql(f"KILL {thread}")


def test_a_database_that_is_down_is_unavailable(server: Database) -> None:
    nobody = sqlalchemy.make_url(server.url()).set(port=1)
    records = Records(nobody.render_as_string(hide_password=False), bucket="b")
    with pytest.raises(UnavailableError, match=r"no clear answer") as caught:
        records.insert(KEY, ".tmp/a")
    assert PASSWORD not in f"{caught.value} {caught.value.__cause__}"


@pytest.fixture
def two_phase_url(seaweedfs: SeaweedFS, unconditional: Proxy, database: str) -> str:
    """The URL that a user would write, for SeaweedFS without conditional writes."""
    plain = unconditional.url(seaweedfs.shared_bucket, uuid.uuid4().hex)
    return f"{plain}&cas=two-phase&cas_store={quote(database, safe='')}"


def test_on_a_real_store_without_conditional_writes(two_phase_url: str) -> None:
    with open_store(two_phase_url) as store:
        assert isinstance(store, TwoPhaseStore)
        store.put_if_absent(KEY, b"one")
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent(KEY, b"two")
        store.upload("segments/1", [b"a" * 100, b"b"])
        assert [meta.key for meta in store.list()] == ["segments/1", KEY]
        assert store.get(KEY) == b"one"
        store.delete(KEY)
        store.put_if_absent(KEY, b"three")
        assert store.get(KEY) == b"three"
        assert store.recover().completed == ()
        assert store.collect(EVER).temporaries == ()


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.ERROR_AFTER, Fault.ERROR_BEFORE])
def test_a_copy_whose_answers_are_all_lost_is_resolved_by_the_commit_loop(
    seaweedfs: SeaweedFS, seaweedfs_proxy: Proxy, tmp_path: Path, fault: Fault
) -> None:
    plain = seaweedfs_proxy.url(seaweedfs.shared_bucket, uuid.uuid4().hex)
    database = quote(f"sqlite:///{tmp_path}/cas.db", safe="")
    with open_store(f"{plain}&cas=two-phase&cas_store={database}") as store:
        assert isinstance(store, TwoPhaseStore)
        # As many times as the client below tries; then the loop comes back to its own record.
        seaweedfs_proxy.inject(fault, "PUT", "wal/1", times=6)
        commit(store, KEY, b"our own nonce")
        assert store.get(KEY) == b"our own nonce"
        assert seaweedfs_proxy.exchanges[-1].fault is None
        store.recover()
        assert store.collect(EVER).temporaries == ()


def put_in_a_process(url: str, keys: list[str], data: bytes) -> list[str]:
    """Try to create every key; return those that were ours."""
    won = []
    with open_store(url) as store:
        for key in keys:
            try:
                store.put_if_absent(key, data)
            except AlreadyExistsError:
                assert store.get(key) != data
            else:
                assert store.get(key) == data
                won.append(key)
    return won


def test_racing_processes_have_one_winner_each(two_phase_url: str) -> None:
    keys = [f"wal/{i}" for i in range(20)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=spawn) as pool:
        names = [b"a", b"b", b"c"]
        won = list(pool.map(put_in_a_process, [two_phase_url] * 3, [keys] * 3, names))
    assert sorted(key for mine in won for key in mine) == sorted(keys)
    with open_store(two_phase_url) as store:
        assert isinstance(store, TwoPhaseStore)
        for name, mine in zip(names, won, strict=True):
            assert [store.get(key) for key in mine] == [name] * len(mine)
        assert [meta.key for meta in store._inner.list()] == sorted(keys)
