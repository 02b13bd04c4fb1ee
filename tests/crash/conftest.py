"""Where processes are killed: on files, and on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.object_stores import SeaweedFS


@pytest.fixture(params=["file", pytest.param("seaweedfs", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A bucket that nobody has used."""
    if request.param == "file":
        return f"file://{tmp_path}/bucket"
    server = request.getfixturevalue("seaweedfs")
    assert isinstance(server, SeaweedFS)
    return server.fresh_url()
