"""Run a server that cannot outlive the process that asked for it, not even when that is killed -9.

    python run_tethered.py --parent PID --signal N [--user NAME] [--remove PATTERN]... -- COMMAND...

The tether starts the command in a process group of its own and watches two processes: its parent
and the command. When the parent is gone, or SIGTERM comes, it stops the command, and it leaves with
the command's exit code. If the parent is not there to do it, it removes the paths it was told of.

Why a process in between: the kernel's own parent-death signal follows the *thread* that started a
child, and is dropped by a change of user. Here the tether is the parent, has a single thread, and
asks for the signal after the change of user; so the command also dies with a tether killed -9.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import os
import pwd
import select
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1
STOP_SECONDS_MAX = 10


def main() -> int:
    """Run the command until it ends, the parent ends, or SIGTERM comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, default=signal.SIGKILL)
    parser.add_argument("--user", default="")
    parser.add_argument("--remove", action="append", default=[])
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()

    wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    try:
        parent_fd = os.pidfd_open(args.parent)
    except ProcessLookupError:
        return 1
    if os.getppid() != args.parent:  # it died first, and the number is somebody else's now
        return 1
    server = os.fork()
    if server == 0:
        run(args.command, args.user)
    server_fd = os.pidfd_open(server)
    wait(parent_fd, wake_r, server_fd)
    stop(server, server_fd, args.signal)
    _, status = os.waitpid(server, 0)
    if wait(parent_fd, seconds=0):
        for path in (path for pattern in args.remove for path in glob.glob(pattern)):
            remove(path)
    return os.waitstatus_to_exitcode(status) & 0xFF


def run(command: list[str], user: str) -> None:
    """Become the command; never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        if user:
            entry = pwd.getpwnam(user)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        tether = os.getppid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() == tether != 1:
            os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def wait(*fds: int, seconds: float | None = None) -> bool:
    """Return whether one of `fds` has something to say, at the latest after `seconds`."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def stop(server: int, server_fd: int, how: int) -> None:
    """End the server and whatever it started in its group: as it likes to be asked, then by force."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, how)
    wait(server_fd, seconds=STOP_SECONDS_MAX)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server, signal.SIGKILL)


def remove(path: str) -> None:
    """Remove a file or a folder, whatever state a killed server left it in."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
