"""Commits that were acknowledged before they are durable: `PRAGMA synchronous=OFF`.

They are sent in the background, in order, as many as wait in one commit of the page store. So what a
crash leaves is always the state after one of them, with none missing before it. At most
`COMMITS_MAX` of them can be lost: a commit waits while there are that many, while they have
`WAITING_BYTES_MAX` or more, or while the oldest has waited for longer than `BEHIND_S_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from reef.clock import Clock
from reef.errors import NotWrittenError, ReefError, UnavailableError
from reef.sqlite._database_version import TransactionPages
from reef.threads import Condition, Threads

COMMITS_MAX = 64
BEHIND_S_MAX = 1.0
BYTES_MAX = 8 << 20
"""Of the commits that are sent as one."""
WAITING_BYTES_MAX = 64 << 20
_ATTEMPTS = 3


class Holder(Protocol):
    """An open file that commits, or whose commits are queued."""

    lost: ReefError | None
    """Why commits that were acknowledged to it are lost."""

    def raise_lost(self) -> None:
        """Raise `lost`, once."""
        ...


class Queued(NamedTuple):
    """A commit that waits to be sent."""

    holder: Holder
    commit: TransactionPages
    since: float = 0.0


class Behind:
    """The queue of one database. The condition is its owner's lock."""

    def __init__(
        self,
        cond: Condition,
        threads: Threads,
        clock: Clock,
        send: Callable[[list[Queued]], None],
        dropped: Callable[[], None],
    ) -> None:
        """`send` makes the oldest commits durable, as one, without the lock.

        `dropped` is called under the lock when all queued commits are lost.
        """
        self._cond = cond
        self._threads = threads
        self._clock = clock
        self._send = send
        self._dropped = dropped
        self._queue: deque[Queued] = deque()
        self._is_running = False
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is not durable yet."""
        return bool(self._queue)

    def wait_for_room(self) -> None:
        """Return when another commit may be taken. Lock held; waiting releases it."""
        while self._is_full():
            self._cond.wait()

    def add(self, queued: Queued) -> None:
        """Take a commit. Lock held."""
        self._queue.append(queued._replace(since=self._clock.monotonic()))
        if not self._is_running:
            self._is_running = True
            self._threads.start(self._run, name="reef-sqlite-behind")
        self._cond.notify_all()

    def _is_full(self) -> bool:
        if not self._queue:
            return False
        late_s = self._clock.monotonic() - self._queue[0].since
        if len(self._queue) >= COMMITS_MAX or late_s > BEHIND_S_MAX:
            return True
        return sum(_nbytes(queued) for queued in self._queue) >= WAITING_BYTES_MAX

    def drain(self) -> None:
        """Return when the queue is empty: every commit is sent, or lost and reported."""
        if not self._queue:
            return  # without the lock, which this thread may have when the collector closes a file
        with self._cond:
            while self._queue:
                self._cond.wait()

    def close(self) -> None:
        """Send what there is, and end."""
        self.drain()
        with self._cond:
            self._is_closed = True
            self._cond.notify_all()
            while self._is_running:
                self._cond.wait()

    def _run(self) -> None:
        while True:
            with self._cond:
                while not self._queue and not self._is_closed:
                    self._cond.wait()
                if not self._queue:
                    self._is_running = False
                    self._cond.notify_all()
                    return
                taken = self._take()
            failure = self._try(taken)
            with self._cond:
                if failure is None:
                    for _ in taken:
                        self._queue.popleft()
                else:
                    self._lose(failure)
                self._cond.notify_all()

    def _take(self) -> list[Queued]:
        """Return the oldest that fit into one commit, one at least. They stay in the queue."""
        taken: list[Queued] = []
        nbytes = 0
        for queued in self._queue:
            nbytes += _nbytes(queued)
            if taken and nbytes > BYTES_MAX:
                break
            taken.append(queued)
        return taken

    def _try(self, taken: list[Queued]) -> BaseException | None:
        for attempt in range(_ATTEMPTS):
            try:
                self._send(taken)
                return None
            except NotWrittenError as error:
                failure: BaseException = error
                if attempt < _ATTEMPTS - 1:
                    self._clock.sleep(0.01 * 4**attempt)
            except BaseException as error:  # noqa: BLE001 reported to every acknowledged commit
                return error
        return failure

    def _lose(self, failure: BaseException) -> None:
        """Drop all commits that wait, and report the loss to each connection that made one."""
        lost = {id(queued.holder): queued.holder for queued in self._queue}
        count = len(self._queue)
        self._dropped()
        error = UnavailableError(
            f"{count} commits acknowledged under synchronous=OFF are lost, or may be: {failure}"
        )
        error.__cause__ = failure if isinstance(failure, ReefError) else None
        for holder in lost.values():
            holder.lost = error
        self._queue.clear()  # last: a caller that finds it empty finds the loss, too


def _nbytes(queued: Queued) -> int:
    return sum(map(len, queued.commit.pages.values()))
