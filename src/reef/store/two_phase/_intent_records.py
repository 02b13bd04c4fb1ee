"""The transactional store of two-phase CAS: one table of intents, in SQL.

    reef_cas(bucket, destination, source, committed, created_us)
    PRIMARY KEY (bucket, destination)    one creator of a name wins
    UNIQUE (bucket, source)              a writer and a collector cannot both have a temporary

Invariants:

- Every operation is one statement in autocommit, so each is atomic by itself and costs one round
  trip. What must hold between two operations is the business of `reef.store.two_phase._store`.
- `insert` says False only if the database refused the row for a key that is taken. When the answer
  got lost it raises UnavailableError, and the row may be there or not.
- A row changes only from pending to committed, and only where destination and source both match.

Keys compare by bytes everywhere: a database that folds case, or sorts by language, would take two
names for one. `created_us` is for people; nothing is decided by it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "two-phase CAS needs SQLAlchemy, which is not installed: pip install 'reefdb[two-phase]' "
        "(or [postgresql], [mysql], which bring the database's driver along)",
        name="sqlalchemy",
    ) from error
from sqlalchemy import exc
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL, make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from reef.errors import AccessDeniedError, InvalidInputError, ReefError, UnavailableError
from reef.types import OBJECT_KEY_BYTES_MAX

BUCKET_BYTES_MAX = 255
SOURCE_BYTES_MAX = 64
PAGE_ROWS = 1000

# What a URL may start with -> the driver, and the extra that installs it.
_DRIVERS = {
    "sqlite": ("sqlite", ""),
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgresql+psycopg": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mysql+pymysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mysql+pymysql", "mysql"),
    "mariadb+pymysql": ("mysql+pymysql", "mysql"),
}
# A statement that is blocked or finds no database is given up after about half a minute. The URL's
# own options go first. What is not covered: a PostgreSQL whose processes are frozen while its
# machine still answers; its client library has no time limit for reading.
_TIMEOUTS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 30.0},
    "postgresql": {
        "connect_timeout": 10,
        "options": "-c statement_timeout=30000",
        "tcp_user_timeout": 30_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
    },
    "mysql": {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30},
}
# How SQLite, PostgreSQL and MySQL say "you may not" and "this is not what you think it is".
_REFUSED = (
    *("SQLITE_READONLY", "SQLITE_PERM", "28", "42501"),
    *(f"mysql {code}" for code in (1044, 1045, 1142, 1143, 1698)),
)
_WRONG = (
    *("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_ERROR", "3D000", "42"),
    *(f"mysql {code}" for code in (1049, 1054, 1146)),
)
# PostgreSQL's driver gives no code while it is still connecting.
_REFUSED_TEXT = re.compile(r"authentication failed|no pg_hba\.conf entry|role \S+ does not exist")
_WRONG_TEXT = re.compile(r"database \S+ does not exist")


def _bytewise(length: int) -> sa.types.TypeEngine[str]:
    """Return a type for ASCII keys that compares by bytes and fits into an index everywhere."""
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql")
    )


_cas = sa.Table(
    "reef_cas",
    sa.MetaData(),
    sa.Column("bucket", _bytewise(BUCKET_BYTES_MAX), primary_key=True),
    sa.Column("destination", _bytewise(OBJECT_KEY_BYTES_MAX), primary_key=True),
    sa.Column("source", _bytewise(SOURCE_BYTES_MAX), nullable=False),
    sa.Column("committed", sa.Boolean, nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("bucket", "source", name="reef_cas_source"),
    mysql_engine="InnoDB",
    mysql_row_format="DYNAMIC",
)
_is_pending = _cas.c.committed == sa.false()
# Pending rows are few among many. MySQL has no partial indexes and reads the bucket's rows instead.
_pending_index = sa.Index(
    "reef_cas_pending",
    _cas.c.bucket,
    _cas.c.destination,
    sqlite_where=_is_pending,
    postgresql_where=_is_pending,
)


class Record(NamedTuple):
    """The intent to copy `source` to `destination`; `committed` once that has been done."""

    destination: str
    source: str
    committed: bool


class Records:
    """The records of one bucket. Safe to share among threads; open one in each process."""

    def __init__(self, url: str, *, bucket: str) -> None:
        """Use the database at `url` for the objects of `bucket`. Connects at the first use.

        `bucket` must be spelt alike by every client of the same objects: it is what they meet at.
        Raises InvalidInputError for a URL that cannot be used, or if its driver is not installed.
        """
        if not 0 < len(bucket) <= BUCKET_BYTES_MAX or not bucket.isascii():
            raise InvalidInputError.of(
                "bucket", bucket, f"1 to {BUCKET_BYTES_MAX} ASCII characters"
            )
        self.bucket = bucket
        self._url = _parse(url)
        self.url = _public_url(self._url)
        self._engine = _engine(self._url)
        self._prepared = False
        self._prepare_lock = threading.Lock()

    def insert(
        self, destination: str, source: str, *, committed: bool = False, created_us: int = 0
    ) -> bool:
        """Record the intent; False if the destination has a record, or the source is claimed.

        Raises UnavailableError if there was no clear answer: the row may then exist or not.
        """
        values = {
            "bucket": self.bucket,
            "destination": destination,
            "source": source,
            "committed": committed,
            "created_us": created_us,
        }
        try:
            self._write(sa.insert(_cas).values(values))
        except exc.IntegrityError:
            return False
        return True

    def commit(self, destination: str, source: str) -> bool:
        """Mark the record as done; False if there is no such record (any more)."""
        statement = sa.update(_cas).where(*self._match(destination, source)).values(committed=True)
        return self._write(statement) == 1

    def remove(self, destination: str, source: str, *, committed: bool) -> bool:
        """Remove the record in just that state; False if there is none."""
        state = _cas.c.committed == (sa.true() if committed else sa.false())
        return self._write(sa.delete(_cas).where(*self._match(destination, source), state)) == 1

    def find(self, destination: str) -> Record | None:
        """Return the record of `destination`, if there is one."""
        return next(iter(self._read(_cas.c.destination == destination)), None)

    def find_source(self, source: str) -> Record | None:
        """Return the record that names the temporary `source`, if there is one."""
        return next(iter(self._read(_cas.c.source == source)), None)

    def pending(self) -> Iterator[Record]:
        """Yield the records whose copy nobody has confirmed, in byte order of destination."""
        return self._scan(_is_pending)

    def committed(self) -> Iterator[Record]:
        """Yield the records whose copy is confirmed, in byte order of destination."""
        return self._scan(_cas.c.committed == sa.true())

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __repr__(self) -> str:
        return f"Records({self.url!r}, bucket={self.bucket!r})"

    def _match(self, destination: str, source: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (
            _cas.c.bucket == self.bucket,
            _cas.c.destination == destination,
            _cas.c.source == source,
        )

    def _scan(self, state: sa.ColumnElement[bool]) -> Iterator[Record]:
        """Page by key, so that rows which come and go meanwhile neither repeat nor hide others."""
        after = ""
        while page := self._read(state, _cas.c.destination > after):
            yield from page
            after = page[-1].destination

    def _read(self, *conditions: sa.ColumnElement[bool]) -> list[Record]:
        statement = (
            sa.select(_cas.c.destination, _cas.c.source, _cas.c.committed)
            .where(_cas.c.bucket == self.bucket, *conditions)
            .order_by(_cas.c.destination)
            .limit(PAGE_ROWS)
        )
        try:
            with self._connect() as connection:
                return [Record(*row) for row in connection.execute(statement)]
        except exc.SQLAlchemyError as error:
            raise self._explain(error) from error

    def _write(self, statement: sa.Insert | sa.Update | sa.Delete) -> int:
        """Run the statement and return how many rows it matched. Raises IntegrityError too."""
        try:
            with self._connect() as connection:
                return connection.execute(statement).rowcount
        except exc.IntegrityError:
            raise
        except exc.SQLAlchemyError as error:
            raise self._explain(error) from error

    def _connect(self) -> sa.Connection:
        try:
            if not self._prepared:
                self._prepare()
            return self._engine.connect()
        except (TypeError, ValueError, RuntimeError) as error:
            # What drivers raise for options they do not know and logins they cannot do.
            raise InvalidInputError(f"{self.url} cannot be used: {self._hushed(error)}") from None

    def _prepare(self) -> None:
        """Create the table unless it is there; several clients may be doing this at once."""
        with self._prepare_lock, self._engine.connect() as connection:
            if self._prepared:
                return
            if self._engine.dialect.name == "sqlite":
                # One fsync a commit instead of three. The file remembers it, so a client that
                # finds it busy need not wait: another one is setting it, or the next will.
                with suppress(exc.OperationalError):
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            if not sa.inspect(connection).has_table(_cas.name):
                try:
                    connection.execute(CreateTable(_cas, if_not_exists=True))
                    if self._engine.dialect.name in ("sqlite", "postgresql"):
                        connection.execute(CreateIndex(_pending_index, if_not_exists=True))
                except exc.DBAPIError:
                    # PostgreSQL lets two "if not exists" collide. The other one has made it.
                    if not sa.inspect(connection).has_table(_cas.name):
                        raise
            self._prepared = True

    def _explain(self, error: exc.SQLAlchemyError) -> ReefError:
        """Turn what SQLAlchemy raises into what the caller should do."""
        cause = getattr(error, "orig", None) or error
        number = cause.args[0] if cause.args else None
        if isinstance(number, int):
            code = f"mysql {number}"  # says more than its SQLSTATE, which lumps much together
        else:
            code = (
                getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
            )
        said = self._hushed(cause)
        if code.startswith(_REFUSED) or _REFUSED_TEXT.search(said):
            return AccessDeniedError(f"{self.url}: access was refused ({said}); check the account")
        unfit = isinstance(error, exc.ProgrammingError)
        if unfit or code.startswith(_WRONG) or _WRONG_TEXT.search(said):
            return InvalidInputError(
                f"{self.url} cannot hold Reef's table reef_cas ({said}); check the URL, "
                "and that the database exists and the table is Reef's own"
            )
        return UnavailableError(f"{self.url}: no clear answer ({said}); retry later")

    def _hushed(self, error: BaseException) -> str:
        """Return the error's first line without the password."""
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        return said.replace(str(self._url.password), "***") if self._url.password else said


def _parse(url: str) -> URL:
    """Return the database's URL with its driver named. Never shows the password."""
    allowed = (
        "sqlite:////absolute/path, postgresql://user:password@host/database "
        "or mysql://user:password@host/database"
    )
    scheme = url.split("://", 1)[0] if "://" in url else ""
    if scheme not in _DRIVERS:
        shown = f"{scheme}://..." if scheme else "..."
        raise InvalidInputError.of("cas_store", shown, allowed)
    try:
        parsed = make_url(url).set(drivername=_DRIVERS[scheme][0])
    except (exc.ArgumentError, ValueError):
        raise InvalidInputError.of(
            "cas_store", f"{scheme}://...", allowed, "percent-encode special characters"
        ) from None
    if scheme == "sqlite" and not (parsed.database or "").startswith("/"):
        # In memory it would arbitrate for nobody; a relative path is another one in each folder.
        raise InvalidInputError.of(
            "cas_store", _public_url(parsed), "an absolute path: sqlite:////data/cas.db"
        )
    if scheme == "sqlite" and parsed.query.keys() - {"timeout"}:
        raise InvalidInputError(
            "cas_store = 'sqlite://...' has an option other than timeout=SECONDS: leave it out"
        )
    if scheme != "sqlite" and not (parsed.host and parsed.database):
        raise InvalidInputError.of("cas_store", _public_url(parsed), allowed)
    return parsed


def _public_url(url: URL) -> str:
    """Return the URL for people: without the password, and without options, which may hold one."""
    return url.set(query={}).render_as_string(hide_password=True)


def _engine(url: URL) -> sa.Engine:
    """Return an engine that connects at its first use. Raises if the driver is not installed."""
    name = url.get_backend_name()
    timeouts = {k: v for k, v in _TIMEOUTS[name].items() if k not in url.query}
    try:
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            pool_pre_ping=name != "sqlite",
            connect_args=timeouts,
        )
    except ImportError as error:
        extra = _DRIVERS[url.drivername][1]
        raise InvalidInputError(
            f"{name}:// needs the driver {error.name}, which is not installed: "
            f"pip install 'reefdb[{extra}]'"
        ) from None
    if name == "sqlite":
        sa.event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    """Make each commit durable, whatever this SQLite was built to do by default."""
    connection.execute("PRAGMA synchronous = FULL")
