"""From a URL to a store: what is accepted, what is refused, and what is never shown."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import AccessDeniedError, InvalidInputError, ReefError
from reef.store import FileStore, MemoryStore, RemoteStore, open_store
from reef.store._remote import exceptions  # type: ignore[attr-defined]
from reef.store._url import OPTIONS, parse_url

SECRET = "zj/SECRET+t0p=="
QUOTED = "zj%2FSECRET%2Bt0p%3D%3D"


@pytest.mark.parametrize(
    ("url", "scheme", "bucket", "path"),
    [
        ("file:///data/bucket", "file", "", "/data/bucket"),
        ("file:///data/bucket/", "file", "", "/data/bucket"),
        ("file:///data//x/../bucket", "file", "", "/data/bucket"),
        ("file:////data/bucket", "file", "", "/data/bucket"),
        ("file://localhost/data/bucket", "file", "", "/data/bucket"),
        ("file:///data/a%20b%3F", "file", "", "/data/a b?"),
        ("memory://", "memory", "", ""),
        ("memory://Trial_1/a/b", "memory", "Trial_1", "a/b/"),
        ("s3://my-bucket", "s3", "my-bucket", ""),
        ("s3://my-bucket/", "s3", "my-bucket", ""),
        ("S3://my-bucket/a/b/", "s3", "my-bucket", "a/b/"),
        ("gs://my.bucket_1/a", "gs", "my.bucket_1", "a/"),
        ("az://container", "az", "container", ""),
    ],
)
def test_a_url_is_taken_apart(url: str, scheme: str, bucket: str, path: str) -> None:
    parsed = parse_url(url)
    assert (parsed.scheme, parsed.bucket, parsed.path) == (scheme, bucket, path)


def test_options_are_percent_decoded() -> None:
    parsed = parse_url(f"s3://bucket/p?secret_access_key={QUOTED}&endpoint=http://h:1/x")
    assert parsed.options == {"secret_access_key": SECRET, "endpoint": "http://h:1/x"}


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "URL = ''"),
        ("/data/bucket", "URL = '/data/bucket'"),
        ("bucket", "URL = 'bucket'"),
        ("http://host/bucket", "URL = 'http://host/bucket'"),
        ("s4://bucket", "file://, memory://, s3://, gs://, az://"),
        ("s3://[bucket", "'s3://[bucket' is not a URL"),
        ("file://data/bucket", "three slashes"),
        ("file:data", "three slashes"),
        ("file://", "three slashes"),
        ("file:///", "a folder below /"),
        ("file:///..", "a folder below /"),
        ("file:///a%00b", "three slashes"),
        ("s3://", "bucket = ''"),
        ("s3:///key", "bucket = ''"),
        ("s3://ab", "bucket = 'ab'"),
        ("s3://Bucket", "bucket = 'Bucket'"),
        ("s3://-bucket", "3 to 63"),
        ("s3://bucket:9000/x", "bucket = 'bucket:9000'"),
        ("memory://a~b", "at most 64"),
        ("memory://a b", "has blanks or control characters"),
        ("s3://buc\nket", "the URL 's3://buc\\nket' has blanks or control"),
        ("s3://bucket/a\tb", "has blanks or control characters"),
        (" s3://bucket", "has blanks or control characters"),
        ("s3://bucket\x00", "has blanks or control characters"),
        ("file:///data/a b", "has blanks or control characters"),
        ("file:///data/a\u2028b", "has blanks or control characters"),
        ("s3://bucket?region=a\r\nb", "the URL 's3://bucket' has blanks"),
        ("s3://bucket?region=a%0Ab", "the option 'region' of s3:// has control"),
        ("s3://bucket/a//b", "object key = 'a//b'"),
        ("s3://bucket/../x", "object key = '../x'"),
        ("s3://bucket/a%2F..%2Fb", "object key"),
        ("s3://bucket?fsync=off", "s3:// has no option 'fsync'"),
        ("file:///d?fsink=off", "file:// has no option 'fsink': expected one of fsync"),
        ("memory://x?fsync=off", "it takes none"),
        ("s3://bucket?region", "name=value"),
        ("s3://bucket?region=a&region=b", "given more than once: region; give each once"),
        ("s3://bucket#part", "#fragment"),
        ("s3://user@bucket", "give credentials as options"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, named: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("file:///d?fsync=maybe", "fsync = 'maybe'"),
        ("s3://bucket?timeout=soon", "timeout = 'soon'"),
        ("s3://bucket?timeout=0", "timeout = '0'"),
        ("s3://bucket?timeout=9999999d", "timeout = "),
        ("s3://bucket?connect_timeout=-1s", "connect_timeout = "),
        ("s3://bucket?concurrency=0", "concurrency = '0'"),
        ("s3://bucket?concurrency=9999", "from 1 to 256"),
        ("s3://bucket?part_bytes=1MiB", "part_bytes = '1MiB'"),
        ("s3://bucket?merge_gap_bytes=-1", "merge_gap_bytes = '-1'"),
        ("s3://bucket?endpoint=localhost:9000", "endpoint = 'localhost:9000'"),
        ("s3://bucket?endpoint=", "endpoint = ''"),
        ("s3://bucket?endpoint=http://", "endpoint = 'http://'"),
        ("s3://bucket?endpoint=http://a%20b", "endpoint = 'http://a b'"),
        ("s3://bucket?skip_signature=perhaps", "skip_signature = 'perhaps'"),
        ("s3://bucket?virtual_hosted_style=2", "virtual_hosted_style = '2'"),
        ("s3://bucket?access_key_id=a", "SecretAccessKey"),
        ("s3://bucket?cas=three-phase", "one of native, two-phase"),
        ("s3://bucket?cas=two-phase&skip_signature=on", "cas=two-phase needs cas_store"),
        (
            "s3://bucket?cas_store=sqlite:///x&skip_signature=on",
            "cas_store is given without cas=two-phase",
        ),
        ("az://container", "Account must be specified"),
        ("az://container?account_name=a&account_key=***", "Invalid Access Key"),
        ("gs://bucket?service_account=/no/such.json", "/no/such.json"),
        ("s3://bucket?profile=no-such-profile", "profile = 'no-such-profile'"),
    ],
)
def test_a_wrong_option_says_which_and_what_is_allowed(
    url: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert named in str(caught.value)


def test_an_endpoint_from_a_variable_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(InvalidInputError, match="endpoint = 'localhost:9000'"):
        open_store("s3://bucket?skip_signature=on")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://user:{QUOTED}@bucket/x",
        f"x://user:{QUOTED}@bucket/x",
        "x://user:zj/SECRET+t0p==@bucket/x",  # not quoted: the password holds a slash
        f"s3://bucket?access_key_id=a&secret_access_key={QUOTED}&bad=1",
        f"x://bucket?secret_access_key={QUOTED}",
        f"s3://Bad?access_key_id=a&secret_access_key={QUOTED}",
        f"s3://bucket/a//b?access_key_id=a&secret_access_key={QUOTED}",
        f"s3://bucket?access_key_id=a&secret_access_key={QUOTED}&secret_access_key={QUOTED}",
        f"s3://bucket?access_key_id=a&secret_access_key={QUOTED}&region",
        f"s3://[bucket?secret_access_key={QUOTED}",
        f"s3://bucket?secret_access_key={SECRET}#x",
        f"s3://bucket?skip_signature=on&endpoint=http://user:{QUOTED}@host",
        f"s3://bucket?skip_signature=on&cas_store=postgresql://user:{QUOTED}@host/db",
        f"az://container?account_name=a&account_key=***{QUOTED}",
        "az://container?account_name=a&sas_key=SECRET",
    ],
)
def test_no_refusal_shows_a_secret(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "SECRET" not in text


def test_no_store_shows_a_secret() -> None:
    options = f"access_key_id=a&secret_access_key={QUOTED}&endpoint=http://127.0.0.1:1"
    store = open_store(f"s3://bucket/p?{options}")
    assert store.url == "s3://bucket/p"
    assert repr(store) == "RemoteStore('s3://bucket/p')"
    assert "SECRET" not in str(vars(store)["_single"]) + str(vars(store)["_repeating"])


def test_opening_gives_the_store_of_the_scheme(tmp_path: object) -> None:
    assert isinstance(open_store(f"file://{tmp_path}/bucket"), FileStore)
    assert open_store(f"file://{tmp_path}/bucket?fsync=off").url.endswith("bucket?fsync=off")
    assert isinstance(open_store("memory://opened"), MemoryStore)
    store = open_store(
        "s3://bucket/p?skip_signature=on&endpoint=http://127.0.0.1:1"
        "&concurrency=3&merge_gap_bytes=1KiB&part_bytes=6MiB&timeout=2s&connect_timeout=1s"
    )
    assert isinstance(store, RemoteStore)
    assert (store.concurrency, store.merge_gap_bytes) == (3, 1024)
    assert isinstance(open_store("gs://bucket?skip_signature=on"), RemoteStore)
    assert isinstance(open_store("az://container?account_name=a&account_key=YQ=="), RemoteStore)


@pytest.mark.slow
@given(st.text(max_size=40), st.sampled_from(["", "s3://", "file://", "memory://", "az://b/?"]))
def test_whatever_the_url_is_a_store_or_one_refusal(text: str, start: str) -> None:
    with contextlib.suppress(InvalidInputError):
        assert parse_url(start + text).scheme in OPTIONS


def test_every_scheme_has_a_line_of_options() -> None:
    assert set(OPTIONS) == {"file", "memory", "s3", "gs", "az"}


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "169.254.170.2", "metadata.google.internal", "169.254.169.254:80"]
)
def test_missing_credentials_are_told_from_a_silent_store(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients without credentials ask the cloud's own host for some: no server to run for that."""
    said = (
        f"Generic S3 error: Error performing PUT http://{host}/latest/api/token in 5s - HTTP error"
    )
    assert isinstance(_raised(said, "k", monkeypatch), AccessDeniedError)


@pytest.mark.parametrize("key", ["NoSuchBucket", "AccessDenied/credential", "latest/api/token"])
def test_a_key_is_never_taken_for_what_the_server_said(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a lost reply would pass for a refusal, and an acknowledged write for one never made."""
    said = f"Generic S3 error: Error performing PUT http://h/b/{key} in 5s - HTTP error: timed out"
    error = _raised(said, key, monkeypatch)
    assert not isinstance(error, InvalidInputError)


def _raised(said: str, key: str, monkeypatch: pytest.MonkeyPatch) -> ReefError:
    def put(*_: object, **__: object) -> None:
        raise exceptions.GenericError(said)

    monkeypatch.setattr("reef.store._remote.obstore.put", put)
    store = open_store("s3://bucket?skip_signature=on&endpoint=http://127.0.0.1:1")
    with pytest.raises(ReefError) as caught:
        store.put_if_absent(key, b"x")
    return caught.value


def test_a_plus_in_an_option_is_a_plus() -> None:
    """Secret keys have them, and people paste them."""
    url = parse_url("s3://bucket?secret_access_key=ab+c/d%2Be&region=us-east-1")
    assert url.options == {"secret_access_key": "ab+c/d+e", "region": "us-east-1"}


@pytest.mark.parametrize(
    "url",
    [
        "s3://k:[SECRET]@bucket",
        "s3://k:SECRET\u2100@bucket",
        "gs://bucket?service_account=%7B%22private_key%22%3A%22SECRET%22%7D",
        "s3://bucket?cas=two-phase&cas_store=sqlite%3A%2F%2Fu%3ASECRET%40h%2Fd",
        "s3://bucket?cas=two-phase&cas_store=sqlite%3A%2F%2F%2F%2Fx%3Fpassword%3DSECRET",
    ],
)
def test_no_refusal_of_a_library_shows_a_secret(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    told = "".join(traceback.format_exception(caught.value))
    assert "SECRET" not in told.replace(f"open_store({url!r})", "")


@pytest.mark.parametrize("port", ["99999", "-1", "0", "x"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(InvalidInputError, match="endpoint"):
        open_store(f"s3://bucket?endpoint=http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["memory://", "memory://trial", "memory://trial/a/b"])
def test_a_memory_store_shows_its_url(url: str) -> None:
    assert open_store(url).url == url


def test_the_url_of_a_folder_opens_that_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "we%41 #?")
    store.put_if_absent("a", b"x")
    assert open_store(store.url).get("a") == b"x"
