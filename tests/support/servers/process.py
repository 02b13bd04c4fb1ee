"""A server process for the tests: on free ports, in a folder of its own, gone when the run is.

It is waited for with a real round trip, bounded by a deadline and by its process being alive, and
held by a tether (`tests/support/servers/run_tethered.py`), so that it dies with the process that
started it, however that ends. A server that is not installed is an error, never a skipped test.
"""

from __future__ import annotations

import contextlib
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.support.servers import run_tethered
from tests.support.waiting import DEADLINE_SECONDS

LOOPBACK = "127.0.0.1"
LOG_TAIL_BYTES = 8192
PORT_FIRST, PORT_LAST = 10240, 32767
"""Below the ports that the kernel hands out for outgoing connections."""


class ServerError(Exception):
    """A server is not installed, did not start or did not become ready."""


def program(name: str, *folders: str | Path) -> str:
    """Return the path of a program: beside this Python, in `folders`, or on the PATH."""
    places = [Path(sys.executable).parent, *folders, os.environ.get("PATH", os.defpath)]
    found = shutil.which(name, path=os.pathsep.join(map(str, places)))
    if found is None:
        raise ServerError(f"{name} is not installed: run make setup")
    return found


class Ports:
    """Ports that nobody listens on, and that no other test run will choose meanwhile."""

    def __init__(self, count: int) -> None:
        self._claims: list[socket.socket] = []
        self.numbers: list[int] = []
        rng = random.SystemRandom()
        while len(self.numbers) < count:
            port = rng.randint(PORT_FIRST, PORT_LAST)
            if self._claim(port):
                self.numbers.append(port)

    def _claim(self, port: int) -> bool:
        # An abstract socket is a lock that the kernel drops with its owner, so no claim goes stale.
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0reef-test-port-{port}")
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True

    def close(self) -> None:
        """Let others have them."""
        for claim in self._claims:
            claim.close()


def scratch_folder(name: str, user: str) -> Path:
    """Return a new temporary folder that belongs to `user` ("" is whoever runs this)."""
    if not user:
        return Path(tempfile.mkdtemp(prefix=f"reef-{name}-"))
    for base in (Path(tempfile.gettempdir()).resolve(), Path("/var/tmp"), Path("/tmp")):
        # A temporary folder inside a private one is out of reach for another user.
        if all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents)):
            folder = Path(tempfile.mkdtemp(prefix=f"reef-{name}-", dir=base))
            shutil.chown(folder, user)
            return folder
    raise ServerError(f"no temporary folder is open to user {user!r}: set TMPDIR to one that is")


class Server:
    """A server process, its ports and its folder. Use it as a context manager."""

    name: ClassVar[str]
    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGKILL
    user: str = ""
    """Whom to run as, when started by root."""

    not_ready: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """What a round trip may raise while the server is coming up."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the command line, to run in `self.folder` with `self.ports`."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return what to add to an otherwise bare environment."""
        return {}

    def litter(self) -> Sequence[str]:
        """Return patterns of what the server leaves outside its folder."""
        return ()

    def prepare(self) -> None:
        """Put into the folder what the server needs to start."""

    def round_trip(self) -> None:
        """Do what clients do, once; raises one of `not_ready` while the server is not ready."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.ports[0]

    @property
    def endpoint(self) -> str:
        """Where clients connect to."""
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> Self:
        """Start the server and return when it has served a round trip. Raises ServerError."""
        self._claims = Ports(self.ports_needed)
        self.ports = self._claims.numbers
        self.folder = scratch_folder(self.name, self.user)
        self.log = self.folder / "server.log"
        try:
            self.prepare()
            self._process = self._spawn()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove what it left; harmless when it is not running."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
        for path in self._leftovers():
            run_tethered.remove(path)
        self._claims.close()

    def pids(self) -> list[int]:
        """Return the processes of the server, its own first."""
        assert self._process is not None
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found[1:]

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        text = self.log.read_bytes() if self.log.exists() else b""
        return text[-LOG_TAIL_BYTES:].decode(errors="replace")

    def run(self, *command: str) -> None:
        """Run a command to its end as the server's user, its output in the server's log."""
        if self._tethered(command).wait() != 0:
            raise ServerError(f"{self.name}: {command[0]} failed:\n{self.log_tail()}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        return self._tethered(self.command())

    def _tethered(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        options = ["--parent", str(os.getpid()), "--signal", str(int(self.stop_signal))]
        options += [f"--user={self.user}"]
        options += [f"--remove={glob.escape(str(self.folder))}"]
        options += [f"--remove={pattern}" for pattern in self.litter()]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            **self.environment(),
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", run_tethered.__file__, *options, "--", *command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return self.round_trip()
            except self.not_ready as error:
                why = f"not ready after {DEADLINE_SECONDS} s: {error}"
                if (code := self._process.poll()) is not None:
                    why = f"ended with exit code {code}"
                elif time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise ServerError(f"{self.name} {why}; its log:\n{self.log_tail()}") from error

    def _leftovers(self) -> list[str]:
        return [str(self.folder), *(path for p in self.litter() for path in glob.glob(p))]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{self.name} at {self.endpoint}>"
