"""Every promise of a store, kept by every backend, on the real servers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from reef.store import Store, open_store
from reef.testing.contract import StoreContract, keys
from tests.support.servers.object_stores import Azurite, Moto, S3Server, SeaweedFS, s3_client
from tests.support.servers.proxy import Proxy

_numbers = itertools.count()


class OpenedByURL(StoreContract):
    """Two handles on one URL, which a subclass gives as `url`."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with open_store(url) as opened:
            yield opened

    @pytest.fixture
    def store2(self, url: str) -> Iterator[Store]:
        with open_store(url) as opened:
            yield opened


class TestMemory(OpenedByURL):
    thread_rounds = 50
    process_racers = 0
    many = 2100

    @pytest.fixture
    def url(self) -> str:
        return f"memory://contract-{next(_numbers)}"


class TestMemoryPrefix(TestMemory):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://contract-{next(_numbers)}/a/prefix"


class TestFile(OpenedByURL):
    thread_rounds = 50
    process_rounds = 100
    process_racers = 4
    many = 2100

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{quote(str(tmp_path))}/bucket"


class TestFileWithoutFsync(TestFile):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{quote(str(tmp_path))}/bucket?fsync=off"


class AbandonedS3Uploads:
    """What a client that died in the middle of an upload leaves on S3."""

    @pytest.fixture
    def server(self) -> S3Server:
        raise NotImplementedError

    def test_abandoned_uploads_are_discarded_by_age(
        self, store: Store, url: str, server: S3Server
    ) -> None:
        client = s3_client(server.endpoint)
        bucket, prefix = url.split("?")[0].removeprefix("s3://").split("/", 1)
        prefix = prefix.strip("/") + "/"
        elsewhere = f"elsewhere-{next(_numbers)}/b"
        for key in (f"{prefix}segments/1.seg", elsewhere):
            begun = client.create_multipart_upload(Bucket=bucket, Key=key)
            client.upload_part(
                Bucket=bucket,
                Key=key,
                UploadId=begun["UploadId"],
                PartNumber=1,
                Body=bytes(5 << 20),
            )
        assert keys(store.list()) == []
        assert list(store.sweep(0)) == []
        soon = time.time_ns() // 1000 + 60_000_000
        assert list(store.sweep(soon)) == ["segments/1.seg"]
        assert list(store.sweep(soon)) == []
        left = client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
        assert elsewhere in [upload["Key"] for upload in left]
        store.upload("segments/1.seg", [b"again"])
        assert store.get("segments/1.seg") == b"again"


@pytest.mark.servers
class TestSeaweedFS(AbandonedS3Uploads, OpenedByURL):
    thread_racers = 4
    thread_rounds = 10
    process_rounds = 10

    @pytest.fixture
    def server(self, seaweedfs: SeaweedFS) -> S3Server:
        return seaweedfs

    @pytest.fixture
    def url(self, seaweedfs: SeaweedFS) -> str:
        return seaweedfs.fresh_url()


@pytest.mark.servers
class TestMoto(AbandonedS3Uploads, OpenedByURL):
    thread_racers = 16
    thread_rounds = 20
    process_racers = 4
    process_rounds = 30

    @pytest.fixture
    def server(self, moto: Moto) -> S3Server:
        return moto

    @pytest.fixture
    def url(self, moto: Moto) -> str:
        return moto.fresh_url()


@pytest.mark.servers
class TestAzurite(OpenedByURL):
    process_racers = 3

    @pytest.fixture
    def url(self, azurite: Azurite) -> str:
        return azurite.fresh_url()


@pytest.mark.servers
class TestTwoPhase(OpenedByURL):
    """SeaweedFS without conditional writes, and SQLite to decide."""

    thread_racers = 4
    thread_rounds = 5
    process_rounds = 5
    many = 1020

    @pytest.fixture
    def url(self, unconditional: Proxy, seaweedfs: SeaweedFS, tmp_path: Path) -> str:
        place = seaweedfs.fresh_url().split("?")[0].removeprefix("s3://").split("/", 1)
        records = quote(f"sqlite:///{tmp_path}/records.db", safe="")
        return f"{unconditional.url(*place)}&cas=two-phase&cas_store={records}"
