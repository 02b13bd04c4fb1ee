"""`file://`: the order of what reaches the disk, and what is said when it does not."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reef.clock import SystemClock
from reef.database import Database
from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.gc import collect
from reef.settings import Settings
from reef.store import FileStore, create, open_store
from reef.store._file_store import RESERVE, TEMPORARY
from reef.testing import ManualClock

KEY = "ns/wal/1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root)


def failing(code: int) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise OSError(code, os.strerror(code))

    return fail


def temporaries(root: Path) -> list[str]:
    return sorted(os.listdir(root / TEMPORARY))


# What reaches the disk, in which order: as the kernel saw it.

TRACED = """
import sys
from reef.store import FileStore
store = FileStore(sys.argv[1], fsync=sys.argv[2] == "on")
for i in range(int(sys.argv[3])):
    store.put_if_absent(f"ns/wal/{i}", b"payload")
"""


def trace(root: Path, fsync: str, puts: int) -> list[str]:
    """Return what a process that puts objects asks of the kernel, with paths for descriptors."""
    log = root.parent / "trace"
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", str(log), "true"], check=False).returncode:
        pytest.skip("strace is not installed or not allowed; the patched tests see the same order")
    names = "trace=openat,write,fsync,fdatasync,link,linkat,mkdir,mkdirat,unlink,unlinkat,rename"
    command = [strace, "-f", "-y", "-o", str(log), "-e", names, sys.executable, "-c", TRACED]
    subprocess.run([*command, str(root), fsync, str(puts)], check=True)
    found = re.compile(r"^\d+ +(\w+)\((.*)\) += \d")
    calls = (found.match(line) for line in log.read_text().splitlines())
    return [f"{c[1]} {c[2]}" for c in calls if c and str(root.parent) in c[2]]


def steps(calls: list[str], root: Path) -> list[str]:
    """Return the calls in short: `fsync ns/wal`, `link ns/wal/0`, with T for the temporary."""
    out = []
    for call in calls:
        name = call.split(" ", 1)[0].removesuffix("at")
        if name == "open":
            continue
        paths = re.findall(rf"[<\"]({re.escape(str(root.parent))}[^>\"]*)[>\"]", call)
        path = os.path.relpath(paths[-1], root)
        out.append(f"{name} {re.sub(rf'{re.escape(TEMPORARY)}/[0-9a-f]+', 'T', path)}")
    return out


def test_the_kernel_sees_write_fsync_link_fsync_of_the_folder(root: Path) -> None:
    seen = steps(trace(root, "on", 2), root)
    last = ["write T", "fsync T", "link ns/wal/1", "unlink T", "fsync ns/wal"]
    assert seen[-5:] == last  # the second put: every folder is known
    first = seen[:-5]
    assert first[-5:] == [step.replace("wal/1", "wal/0") for step in last]
    # Each new folder's entry is durable before anything is linked below it.
    for folder, parent in (("ns", "."), ("ns/wal", "ns"), (".", "..")):
        made = first.index(f"mkdir {folder}")
        assert f"fsync {parent}" in first[made:-5]


def test_the_kernel_sees_no_fsync_when_it_is_off(root: Path) -> None:
    seen = steps(trace(root, "off", 1), root)
    assert not [step for step in seen if "sync" in step]
    assert seen[-3:] == ["write T", "link ns/wal/0", "unlink T"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """What the store asks of `os`, in order; descriptors by the path they were opened with."""
    seen: list[str] = []

    def shown(path: object) -> str:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        name = os.path.relpath(str(path), root)
        return re.sub(rf"{re.escape(TEMPORARY)}/[0-9a-f]+", "T", name)

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            seen.append(f"{name} {shown(args[-1] if name == 'link' else args[0])}")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "link", "mkdir", "unlink"):
        watch(name)
    return seen


def test_a_put_is_write_fsync_link_fsync_of_the_folder(store: FileStore, calls: list[str]) -> None:
    store.put_if_absent(KEY, b"1")
    calls.clear()
    store.put_if_absent("ns/wal/2", b"2")
    assert calls == ["write T", "fsync T", "link ns/wal/2", "unlink T", "fsync ns/wal"]


def test_the_folder_of_an_object_that_is_found_there_is_synced(
    store: FileStore, calls: list[str]
) -> None:
    """It may be one's own, linked by a put that ended before it had synced the folder."""
    store.put_if_absent(KEY, b"1")
    calls.clear()
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent(KEY, b"1")
    assert [call for call in calls if "fsync ns/wal" in call] == ["fsync ns/wal"]


def test_an_upload_is_durable_the_same_way(store: FileStore, calls: list[str]) -> None:
    store.put_if_absent(KEY, b"1")
    calls.clear()
    store.upload("ns/wal/2", iter([b"1", b"2"]))
    assert calls == ["write T"] * 2 + ["fsync T", "link ns/wal/2", "unlink T", "fsync ns/wal"]


def test_folders_another_process_has_made_are_synced_before_use(
    root: Path, store: FileStore, calls: list[str]
) -> None:
    """Whoever made them may not have synced them yet, and may be gone."""
    (root / "ns" / "wal").mkdir(parents=True)
    calls.clear()
    store.put_if_absent(KEY, b"1")
    before_link = calls[: calls.index("link ns/wal/1")]
    assert {"fsync ..", "fsync .", "fsync ns"} <= set(before_link)


def test_a_partial_write_is_continued(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    data = random.Random(1).randbytes(1000)
    store.put_if_absent(KEY, data)
    assert (root / KEY).read_bytes() == data


# The disk fails.


def test_a_failed_fsync_after_the_link_is_unknown_and_closes_the_handle(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent(KEY, b"1")
    real = os.fsync

    def fail_on_folders(descriptor: int) -> None:
        if os.path.isdir(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(OutcomeUnknownError, match="'ns/wal/2' is unknown") as caught:
        store.put_if_absent("ns/wal/2", b"2")
    assert caught.value.key == "ns/wal/2"
    assert (root / "ns/wal/2").exists()  # nothing is cleaned up
    monkeypatch.undo()  # the disk looks well again, as it does after such a failure
    for ask in (
        lambda: store.put_if_absent("ns/wal/3", b"3"),
        lambda: store.upload("ns/wal/3", [b"3"]),
        lambda: store.get(KEY),
        lambda: store.get_range(KEY, 0, 1),
        lambda: store.head(KEY),
        lambda: list(store.list()),
        lambda: store.delete(KEY),
        lambda: store.sweep(0),
    ):
        with pytest.raises(UnavailableError, match=r"was closed because .* open it again"):
            ask()
    assert not (root / "ns/wal/3").exists()
    assert FileStore(root).get("ns/wal/2") == b"2"


def test_create_reports_a_failed_fsync_as_unknown(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent(KEY, b"1")
    folder_only = failing(errno.EIO)
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: folder_only() if os.path.isdir(os.readlink(f"/proc/self/fd/{fd}")) else real(fd),
    )
    with pytest.raises(OutcomeUnknownError):
        create(
            store,
            "ns/wal/2",
            b"nonce",
            nonce=b"nonce",
            is_collected=lambda: False,
            settings=Settings(),
            clock=SystemClock(),
            rng=random.Random(1),
        )


def test_a_failed_fsync_of_a_new_folder_closes_the_handle_too(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fsync would report success and the folder might still be lost."""
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(UnavailableError):
        store.put_if_absent(KEY, b"1")
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match="was closed because"):
        store.put_if_absent(KEY, b"1")
    assert not (root / KEY).exists()


def test_a_failed_fsync_before_the_link_leaves_no_object_and_a_usable_handle(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent(KEY, b"1")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(UnavailableError, match="check the disk"):
        store.put_if_absent("ns/wal/2", b"2")
    monkeypatch.undo()
    assert not (root / "ns/wal/2").exists()
    assert temporaries(root) == []
    store.put_if_absent("ns/wal/2", b"2")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_object_and_says_so(
    store: FileStore, root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent(KEY, b"1")
    monkeypatch.setattr(os, "write", failing(code))
    for put in (store.put_if_absent, lambda key, data: store.upload(key, [data])):
        with pytest.raises(UnavailableError, match=r"'ns/wal/2': .*free some space"):
            put("ns/wal/2", b"2")
    monkeypatch.undo()
    assert [meta.key for meta in store.list()] == [KEY]
    assert temporaries(root) == []
    store.put_if_absent("ns/wal/2", b"2")


BEFORE_THE_LINK = {
    "no room for a folder": ("mkdir", errno.ENOSPC),
    "no descriptors": ("open", errno.EMFILE),
    "no room": ("write", errno.ENOSPC),
    "no quota": ("write", errno.EDQUOT),
    "bad disk": ("write", errno.EIO),
    "failed fsync": ("fsync", errno.EIO),
    "no room for the name": ("link", errno.ENOSPC),
    "temporary gone": ("link", errno.ENOENT),
}


@pytest.mark.parametrize("case", BEFORE_THE_LINK)
def test_what_fails_before_the_link_was_not_written_for_certain(
    store: FileStore, root: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, code = BEFORE_THE_LINK[case]
    store.put_if_absent(KEY, b"1")
    monkeypatch.setattr(os, name, failing(code))
    for put in (store.put_if_absent, lambda k, data: store.upload(k, [data]), create_at(store)):
        with pytest.raises(NotWrittenError):
            put("ns/new/2", b"nonce")
    monkeypatch.undo()
    assert [meta.key for meta in FileStore(root).list()] == [KEY]
    assert temporaries(root) == []


def test_a_link_that_fails_without_saying_how_leaves_it_open(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: str, path: str) -> None:
        real(source, path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UnavailableError) as caught:
        store.put_if_absent(KEY, b"1")
    assert not isinstance(caught.value, NotWrittenError)
    create_at(store)("ns/wal/2", b"nonce")  # which reads it back
    assert store.get("ns/wal/2") == b"nonce"


def test_a_handle_that_was_closed_by_a_failure_writes_nothing_for_certain(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(NotWrittenError):
        store.put_if_absent(KEY, b"1")
    monkeypatch.undo()
    with pytest.raises(NotWrittenError, match=r"was closed because .* open it again"):
        create_at(store)(KEY, b"nonce")


def create_at(store: FileStore) -> Callable[[str, bytes], None]:
    def put(key: str, data: bytes) -> None:
        create(
            store,
            key,
            data,
            nonce=b"nonce",
            is_collected=lambda: False,
            settings=Settings(),
            clock=ManualClock(),
            rng=random.Random(1),
        )

    return put


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused(
    store: FileStore, root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    with pytest.raises(UnsupportedStoreError, match="no hard links"):
        store.put_if_absent(KEY, b"1")
    monkeypatch.undo()
    assert list(store.list()) == []
    assert temporaries(root) == []


def test_no_permission_says_for_what_and_what_to_check(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patched: whoever runs this may be root, whom nothing is denied."""
    store.put_if_absent(KEY, b"1")
    asks: list[tuple[str, Callable[[], object]]] = [
        ("os.open", lambda: store.put_if_absent("ns/wal/2", b"2")),
        ("builtins.open", lambda: store.get(KEY)),
        ("os.stat", lambda: store.head(KEY)),
        ("os.unlink", lambda: store.delete(KEY)),
        ("os.scandir", lambda: list(store.list())),
    ]
    for name, ask in asks:
        with monkeypatch.context() as patched:
            patched.setattr(name, failing(errno.EACCES))
            with pytest.raises(AccessDeniedError, match="check the owner and mode"):
                ask()
    assert store.get(KEY) == b"1"


# The URL is wrong, or somebody else is at work in the folder.


def asks_of(store: FileStore) -> list[Callable[[], object]]:
    return [
        lambda: store.put_if_absent(KEY, b"1"),
        lambda: store.upload(KEY, [b"1"]),
        lambda: store.get(KEY),
        lambda: store.get_range(KEY, 0, 1),
        lambda: store.head(KEY),
        lambda: list(store.list()),
        lambda: store.delete(KEY),
        lambda: store.sweep(0),
    ]


def test_a_missing_parent_folder_is_a_missing_bucket(tmp_path: Path) -> None:
    for ask in asks_of(FileStore(tmp_path / "no" / "bucket")):
        with pytest.raises(BucketNotFoundError, match="does not exist; create it, or fix the URL"):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for ask in asks_of(FileStore(tmp_path / "file")):
        with pytest.raises(BucketNotFoundError, match="is a file, not a folder"):
            ask()
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_the_root_of_the_file_system_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a folder below /"):
        FileStore("/")


def test_the_bucket_itself_is_made_at_the_first_put(store: FileStore, root: Path) -> None:
    assert list(store.list()) == []
    with pytest.raises(NotFoundError):
        store.get(KEY)
    store.delete(KEY)
    assert store.sweep(2**62) == []
    assert not root.exists()
    store.put_if_absent(KEY, b"1")
    assert (root / KEY).read_bytes() == b"1"


@pytest.mark.parametrize("key", ["../escape", "ns/../../escape", "/etc/passwd", "a\0b", ".."])
def test_keys_that_leave_the_bucket_are_refused(store: FileStore, tmp_path: Path, key: str) -> None:
    for ask in (
        lambda: store.put_if_absent(key, b"1"),
        lambda: store.upload(key, [b"1"]),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete(key),
    ):
        with pytest.raises(InvalidInputError):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_an_object_and_a_folder_of_one_name_are_refused_clearly(
    store: FileStore, root: Path
) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("b/c", b"2")
    for key in ("a/x", "a/x/y", "b"):
        for put in (store.put_if_absent, lambda k, data: store.upload(k, [data])):
            with pytest.raises(InvalidInputError, match=rf"object '{key}' clashes with a folder"):
                put(key, b"3")
    for key in ("a/x", "b"):
        for ask in (store.get, store.head, lambda k: store.get_range(k, 0, 1)):
            with pytest.raises(NotFoundError):
                ask(key)
        store.delete(key)
    assert list(store.list("a/")) == []
    assert [meta.key for meta in store.list()] == ["a", "b/c"]
    assert temporaries(root) == []


def test_a_folder_removed_meanwhile_asks_to_retry_and_then_works(
    store: FileStore, root: Path
) -> None:
    store.put_if_absent(KEY, b"1")
    shutil.rmtree(root)
    with pytest.raises(UnavailableError, match="retry"):
        store.put_if_absent(KEY, b"2")
    store.put_if_absent(KEY, b"2")
    assert store.get(KEY) == b"2"


# Temporaries.


def test_temporaries_are_swept_by_age_and_never_listed(store: FileStore, root: Path) -> None:
    store.put_if_absent(KEY, b"1")
    for name, age in (("old", 3600), ("new", 0)):
        path = root / TEMPORARY / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    assert [meta.key for meta in store.list()] == [KEY]
    hour_ago = time.time_ns() // 1000 - 1800 * 1_000_000
    assert store.sweep(hour_ago) == [f"{TEMPORARY}/old"]
    assert temporaries(root) == ["new"]
    assert store.sweep(hour_ago) == []
    assert store.get(KEY) == b"1"


def test_no_object_can_be_taken_for_a_temporary(store: FileStore) -> None:
    """Or sweeping would delete it, and a listing not show it."""
    with pytest.raises(InvalidInputError):
        store.put_if_absent(f"{TEMPORARY}/x", b"1")
    store.put_if_absent(".tmp/x", b"1")
    assert [meta.key for meta in store.list()] == [".tmp/x"]
    assert store.sweep(2**62) == []
    assert store.get(".tmp/x") == b"1"


def test_an_upload_swept_while_it_runs_fails_and_leaves_nothing(
    store: FileStore, root: Path
) -> None:
    def parts() -> Iterator[bytes]:
        yield b"1"
        assert store.sweep(2**62)
        yield b"2"

    with pytest.raises(UnavailableError):
        store.upload(KEY, parts())
    assert list(store.list()) == []


def test_an_upload_whose_parts_fail_leaves_nothing(store: FileStore, root: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"1"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store.upload(KEY, parts())
    assert list(store.list()) == []
    assert temporaries(root) == []


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "the caller's own"),
        NotADirectoryError(errno.ENOTDIR, "the caller's own"),
        PermissionError(errno.EACCES, "the caller's own"),
        OSError(errno.ENOSPC, "the caller's own"),
        NotFoundError("'another' is not in another store"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("after", [0, 1])
def test_what_the_parts_raise_comes_out_as_it_is(
    store: FileStore, root: Path, after: int, error: BaseException
) -> None:
    def parts() -> Iterator[bytes]:
        yield from [b"1"] * after
        raise error

    with pytest.raises(type(error)) as caught:
        store.upload(KEY, parts())
    assert caught.value is error
    assert list(store.list()) == []
    assert temporaries(root) == []
    store.upload(KEY, [b"2"])


def test_a_listing_shows_only_what_can_be_read_and_lies_in_the_bucket(
    store: FileStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.put_if_absent(KEY, b"1")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "ns" / "loop").symlink_to(root)
    (root / "ns" / "dangling").symlink_to(root / "nothing")
    os.mkfifo(root / "ns" / "pipe")
    for name in ("with blank", "ümlaut", "a~", "a\nb"):
        (root / name).write_bytes(b"")
        (root / "ns" / f"{name}-folder").mkdir()
        (root / "ns" / f"{name}-folder" / "x").write_bytes(b"")
    deep = root
    for _ in range(5):  # a path that is longer than any key
        deep = deep / ("d" * 250)
        deep.mkdir()
    (deep / "x").write_bytes(b"")
    for start in ("", "a", "ns/a"):
        assert [meta.key for meta in store.list("", start)] == [KEY]
    assert [meta.key for meta in store.list("ns/")] == [KEY]


def test_losing_a_race_leaves_no_temporary(store: FileStore, root: Path) -> None:
    store.put_if_absent(KEY, b"1")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent(KEY, b"2")
    assert temporaries(root) == []
    assert store.get(KEY) == b"1"


def test_options_reach_the_store(root: Path, calls: list[str]) -> None:
    open_store(f"file://{root}?fsync=off").put_if_absent(KEY, b"1")
    assert not [call for call in calls if "fsync" in call]
    open_store(f"file://{root}").put_if_absent("ns/wal/2", b"1")
    assert "fsync ns/wal" in calls


def test_every_error_is_reefs_own(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_if_absent(KEY, b"1")
    for code in (errno.EIO, errno.EMFILE, errno.ESTALE, errno.EROFS, errno.ELOOP):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", failing(code))
            with pytest.raises(ReefError):
                store.put_if_absent("ns/wal/2", b"2")


# A full disk, and the room that is kept for collection.


def reserved(root: Path) -> list[int]:
    """Return the sizes of the files that are kept."""
    return sorted((root / RESERVE / name).stat().st_size for name in os.listdir(root / RESERVE))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write fail to a file that has no room of its own."""
    write = os.write

    def written(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_blocks == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", written)
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))


def test_room_is_kept_from_the_first_object_on(store: FileStore, root: Path) -> None:
    store.put_if_absent(KEY, b"1")
    assert len(reserved(root)) == 3
    assert len(set(reserved(root))) == 1
    assert temporaries(root) == []
    assert [meta.key for meta in store.list()] == [KEY]


@pytest.mark.parametrize("fsync", [True, False])
def test_collection_alone_may_write_to_a_full_disk(
    root: Path, fsync: bool, request: pytest.FixtureRequest
) -> None:
    store = FileStore(root, fsync=fsync)
    store.put_if_absent("m/0", b"before")
    request.getfixturevalue("full")
    with pytest.raises(NotWrittenError, match="reef gc --apply"):
        store.put_if_absent("m/1", b"somebody")
    with store.reserve():
        for number in range(1, 4):
            store.put_if_absent(f"m/{number}", b"collection %d" % number)
        with pytest.raises(NotWrittenError, match="reserve is used up"):
            store.put_if_absent("m/4", b"too many")
    assert [store.get(meta.key) for meta in store.list("m/")] == [
        b"before",
        *(b"collection %d" % number for number in range(1, 4)),
    ]
    assert reserved(root) == []
    assert temporaries(root) == []


def test_the_reserve_is_made_again_when_there_is_room(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent(KEY, b"1")
    (root / RESERVE / os.listdir(root / RESERVE)[0]).unlink()
    with monkeypatch.context() as context:
        context.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        store.sweep(0)
    assert len(reserved(root)) == 2
    assert temporaries(root) == []
    store.sweep(0)
    assert len(reserved(root)) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_is_freed_by_collection(small_disk: Path) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    store = FileStore(small_disk / "bucket", fsync=False)
    db = Database(store, clock=clock, gc_grace=0.0, retained_generations=1)
    context, kv = db.context(), db.kv("ns")
    for _ in range(4):
        kv.put(b"k", os.urandom(100_000))
        kv.flush()
    with pytest.raises(ReefError, match="free some space"):
        while True:
            kv.put(b"k", os.urandom(20_000))
    with contextlib.suppress(OSError), open(small_disk / "rest", "wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))  # whatever is left, down to the last page
    before = dict(db.kv("ns", mode="r").items())
    clock.advance(3600)
    chain = context.chain("ns")
    report = collect(chain, context.store, settings=context.settings, clock=clock, apply=True)
    assert report.published
    assert {count.kind for count in report.deleted} >= {"manifest", "log"}
    kv.put(b"room", b"again")
    assert dict(db.kv("ns", mode="r").items()) == {**before, b"room": b"again"}
    assert len(reserved(small_disk / "bucket")) == 3
