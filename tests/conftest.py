"""How tests run, and servers for whoever asks for them, started on first use and stopped at the end.

Tests share a server, so each keeps to a place of its own: `seaweedfs.fresh_url()`,
`postgresql.make_database(...)`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.servers.databases import MariaDB, PostgreSQL
from tests.support.servers.object_stores import Azurite, Moto, Rclone, SeaweedFS
from tests.support.servers.process import LOOPBACK, Server
from tests.support.servers.proxy import CONDITIONS, Proxy

# A slow machine is no finding; and where nobody watches, a run must be like the one before.
settings.register_profile(
    "reef",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("reef")


def pytest_configure() -> None:
    """Keep requests to the servers here, whatever proxies the machine is set up with."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), LOOPBACK, "localhost"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of a server's log below a test that failed with it."""
    report = yield
    if report.failed:
        for server in getattr(item, "funcargs", {}).values():
            if isinstance(server, Server):
                report.sections.append((f"log of {server!r}", server.log_tail()))
    return report


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("REEF_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    with SeaweedFS() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[Rclone]:
    with Rclone() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with Azurite() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def unconditional(seaweedfs: SeaweedFS) -> Iterator[Proxy]:
    """SeaweedFS as a store without conditional writes: the proxy takes their headers off."""
    with Proxy(seaweedfs.endpoint, strip=CONDITIONS) as proxy:
        yield proxy


@pytest.fixture
def seaweedfs_proxy(seaweedfs: SeaweedFS) -> Iterator[Proxy]:
    """SeaweedFS behind a proxy of the test's own, to inject faults into."""
    with Proxy(seaweedfs.endpoint) as proxy:
        yield proxy
