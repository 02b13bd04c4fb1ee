"""The SQL databases that two-phase CAS keeps its records in, started for the test run.

Both refuse to run as root, so that root starts them as the user who owns nothing. Neither keeps
its promises through a power cut (no fsync): the tests kill processes, not machines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import sqlalchemy

from tests.support.servers.process import LOOPBACK, Server, program

USER = "reef"
PASSWORD = "reef:test@secret/1"  # with what has to be quoted in a URL


class Database(Server):
    """A server that speaks SQL, with an administrator called `reef`."""

    dialect: ClassVar[str]
    home: ClassVar[str]
    """The database to connect to while there is no other."""

    not_ready = (sqlalchemy.exc.DBAPIError,)

    def __init__(self) -> None:
        super().__init__()
        self.user = "nobody" if os.geteuid() == 0 else ""

    @property
    def endpoint(self) -> str:
        return f"{self.dialect}://{LOOPBACK}:{self.port}"

    def url(self, database: str = "") -> str:
        """Return the SQLAlchemy URL of `database`, with the password in it."""
        url = sqlalchemy.URL.create(
            self.dialect, USER, PASSWORD, LOOPBACK, self.port, database or self.home
        )
        return url.render_as_string(hide_password=False)

    def make_database(self, database: str) -> str:
        """Create `database` and return its SQLAlchemy URL."""
        self._execute(f"CREATE DATABASE {database}")
        return self.url(database)

    def round_trip(self) -> None:
        self._execute("SELECT 1")

    def _execute(self, statement: str) -> None:
        engine = sqlalchemy.create_engine(self.url(), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(sqlalchemy.text(statement))
        finally:
            engine.dispose()


class PostgreSQL(Database):
    """PostgreSQL, over TCP only."""

    name = "postgresql"
    dialect = "postgresql+psycopg"
    home = "postgres"
    stop_signal = signal.SIGQUIT  # at once, but taking its processes and shared memory with it

    def prepare(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        options = ["-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"]
        self.run(self._program("initdb"), "-D", str(self.data), f"--pwfile={password}", *options)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 100,
        }
        return [
            self._program("postgres"),
            "-D",
            str(self.data),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def _program(self, name: str) -> str:
        installed = Path("/usr/lib/postgresql").glob("*/bin")
        return program(name, *sorted(installed, key=lambda p: float(p.parent.name), reverse=True))


class MariaDB(Database):
    """MariaDB, over TCP (its Unix socket stays in its own folder)."""

    name = "mariadb"
    dialect = "mysql+pymysql"
    home = "mysql"
    stop_signal = signal.SIGKILL

    def prepare(self) -> None:
        (self.folder / "init.sql").write_text(
            f"CREATE USER '{USER}'@'{LOOPBACK}' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'{LOOPBACK}';\n"
        )
        self.run(
            program("mariadb-install-db", "/usr/bin"),
            *self._settings(),
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def command(self) -> Sequence[str]:
        return [
            program("mariadbd", "/usr/sbin"),
            *self._settings(),
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--socket=mariadb.sock",  # relative to the data, so that it is never too long a path
            f"--pid-file={self.folder / 'mariadb.pid'}",
            f"--init-file={self.folder / 'init.sql'}",
        ]

    def _settings(self) -> Sequence[str]:
        return [
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--skip-name-resolve",
            "--innodb-flush-method=nosync",
            "--innodb-log-file-size=16M",
            "--innodb-buffer-pool-size=64M",
        ]
