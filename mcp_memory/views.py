"""How any view follows the log.

A view is derived from the episodes of a scope, in the order of the log, and can be thrown away and derived again. It has
a cursor per scope. There are two kinds:

- an `InlineView` is cheap and pure: it is brought up to date inside one write transaction, together with what it follows;
- a `View` is slow or can fail (it embeds, it asks a model): it derives outside any transaction, and is applied in one that
  compares and sets the cursor and the epoch, so that two processes never apply the same batch twice and nothing that was
  forgotten meanwhile comes back.

What a view cannot derive after many tries is set aside by name, so that it holds nobody else up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mcp_memory.errors import ProviderError, ProviderRejected, StoreError
from mcp_memory.protocols import Store, Tx
from mcp_memory.types import Episode, Lag, Scope

if TYPE_CHECKING:
    from mcp_memory.store.cursors import Cursor

INLINE_MOST = 1_000
"""Episodes that one transaction brings an inline view forward by."""

TRIES = 6
"""Times that a view tries to derive one episode by itself before it is set aside."""

_CLAIM = timedelta(minutes=5)
_POLL_SECONDS = 15.0
_LOOKED_AFTER = timedelta(days=1)  # a view with more patience is due when something is added
_PAID_AT_ONCE = 4
_COUNTED = 1_000

log = logging.getLogger(__name__)


class InlineView(Protocol):
    @property
    def name(self) -> str: ...

    def follow(self, tx: Tx, episodes: Sequence[Episode]) -> None:
        """Derive from these episodes and write, inside the transaction."""
        ...

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        """Take out all that rests on these episodes, which are still there; mark what must be derived again."""
        ...

    def clear(self, tx: Tx) -> None:
        """Take out everything that was derived in this scope."""
        ...


class View(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def batch(self) -> int:
        """Episodes derived at once."""
        ...

    @property
    def patience(self) -> timedelta:
        """How long the first episode waits for a batch to be full."""
        ...

    @property
    def paid(self) -> bool:
        """Whether deriving costs enough that a batch is claimed, so that no other process derives it too."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether whoever adds or searches waits a little for it."""
        ...

    @property
    def outside(self) -> bool:
        """Whether somebody else derives it (the connected agent): its batches are handed out and applied when they come
        back."""
        ...

    def gather(self, tx: Tx, seqs: Sequence[int]) -> Any:
        """What deriving the episodes at these positions needs to know, read in one snapshot."""
        ...

    async def derive(self, gathered: Any) -> Any:
        """The slow part; raises ProviderError where it cannot be done now."""
        ...

    def apply(self, tx: Tx, gathered: Any, derived: Any) -> None:
        """Write what was derived, in place of what these episodes had before."""
        ...

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None: ...

    def clear(self, tx: Tx) -> None: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What a view derives next: from the episodes at `seqs`, as they stood at a position and an epoch; `again` where they
    had been derived before."""

    position: int
    epoch: int
    seqs: list[int]
    again: bool
    gathered: Any


class Views:
    """All views of one running memory. `views` are the ones kept up to date here; more may be added while running."""

    def __init__(self, store: Store, inline: Sequence[InlineView], views: Sequence[View]) -> None:
        self._store = store
        self.inline: list[InlineView] = list(inline)
        self.views: list[View] = list(views)
        self._owner = f"{secrets.token_hex(8)} {os.getpid()} {platform.node()}"
        self._running: dict[tuple[Scope, str], asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[bool]] = set()
        self._retries: dict[tuple[Scope, str], asyncio.Task[None]] = {}
        self._background: asyncio.Task[None] | None = None
        self._paid = asyncio.Semaphore(_PAID_AT_ONCE)

    # ---- following

    def follow(self, tx: Tx, *, skip: Sequence[str] = ()) -> None:
        """Bring the inline views up to date inside a write transaction. One that fails is left behind: it can never
        fail what it follows."""
        for view in self.inline:
            if view.name in skip:
                continue
            try:
                with tx.savepoint():
                    self._follow(tx, view)
            except StoreError:
                raise
            except Exception as error:
                log.exception("the view %s could not follow the log", view.name)
                tx.cursors.fail(view.name, f"{type(error).__name__} (see the server's log)")

    def _follow(self, tx: Tx, view: InlineView) -> None:
        cursor = tx.cursors.of(view.name)
        if marked := tx.cursors.marked(view.name, INLINE_MOST):
            view.follow(tx, tx.log.at(marked))
            tx.cursors.unmark(view.name, marked)
        episodes = tx.log.after(cursor.position, INLINE_MOST)
        if episodes:
            view.follow(tx, episodes)
            tx.cursors.advance(view.name, cursor.position, episodes[-1].seq)

    async def catch_up(
        self,
        scope: Scope,
        *,
        within: float,
        learning: float | None = None,
        thorough: bool = False,
        skip: Sequence[str] = (),
        also: Sequence[View] = (),
    ) -> None:
        """Bring every view of the scope up to date: inline ones fully, those that are awaited for at most `within` seconds,
        the others for at most `learning`, or not at all where it is None; what is not done by then goes on in the
        background. With `thorough`, batches that are not full yet too. `also` are views that are not kept up to date
        otherwise."""

        def behind(tx: Tx) -> tuple[bool, list[View]]:
            inline = any(self._follows(tx, view.name) for view in self.inline if view.name not in skip)
            slow = [view for view in (*self.views, *also) if not view.outside and view.name not in skip]
            slow = [view for view in slow if view.awaited or learning is not None]
            return inline, [view for view in slow if self._is_due(tx, view, thorough=thorough)]

        while True:
            inline, views = await self._store.read(scope, behind)
            if not inline:
                break
            await self._store.write(scope, lambda tx: self.follow(tx, skip=skip), durable=False)
        tasks = [(view.awaited, self._task(scope, view, None, thorough=thorough)) for view in views]
        await self._wait([task for awaited, task in tasks if awaited], within)
        await self._wait([task for awaited, task in tasks if not awaited], learning or 0.0)

    def _follows(self, tx: Tx, view: str) -> bool:
        """Whether there is something that an inline view has not followed yet, and may try to by now."""
        cursor = tx.cursors.of(view)
        return cursor.retry_at <= tx.now and (cursor.position < tx.log.last() or bool(tx.cursors.marked(view, 1)))

    def _is_due(self, tx: Tx, view: View, *, thorough: bool = False) -> bool:
        """Whether there is something to derive that may be tried by now."""
        cursor = tx.cursors.of(view.name)
        if cursor.retry_at > tx.now:
            return False
        return bool(tx.cursors.marked(view.name, 1)) or self._is_ripe(tx, view, cursor, thorough=thorough)

    def _is_ripe(self, tx: Tx, view: View, cursor: Cursor, *, thorough: bool = False) -> bool:
        """Whether a batch is full, or its first episode has waited long enough."""
        count, since = tx.log.waiting(cursor.position, view.batch)
        if since is None:
            return False
        return thorough or count >= view.batch or cursor.failures > 0 or since + view.patience <= tx.now

    def gather(self, tx: Tx) -> list[tuple[View, Batch | None]]:
        """What the slow views have to derive next, read in the transaction that appended it. A paid one is only named: it
        has to claim its batch."""
        gathered: list[tuple[View, Batch | None]] = []
        for view in self.views:
            if view.outside:
                continue
            if view.paid and self._is_due(tx, view):
                gathered.append((view, None))
            elif not view.paid and (batch := self.next(tx, view)):
                gathered.append((view, batch))
        return gathered

    async def derive(self, scope: Scope, gathered: Sequence[tuple[View, Batch | None]], *, within: float) -> bool:
        """Go on from what was gathered until the slow views are up to date, waiting at most `within` seconds for those that
        are awaited; whether they are."""
        tasks = [(view.awaited, self._task(scope, view, batch)) for view, batch in gathered]
        awaited = [task for awaited, task in tasks if awaited]
        done = await self._wait(awaited, within)
        return done and len(awaited) == sum(view.awaited for view in self.views)

    async def _wait(self, tasks: Sequence[asyncio.Task[bool]], within: float) -> bool:
        if not tasks:
            return True
        ended, running = await asyncio.wait(tasks, timeout=within)
        return not running and all(task.result() for task in ended if not task.cancelled())

    def _task(self, scope: Scope, view: View, first: Batch | None, *, thorough: bool = False) -> asyncio.Task[bool]:
        """A task that brings a view up to date, after the one that may be running."""
        key = (scope, view.name)
        before = self._running.get(key)

        async def run() -> bool:
            if before is None:
                return await self._derive(scope, view, first, thorough=thorough)
            await asyncio.wait({before})  # it may have derived the same
            return await self._derive(scope, view, None, thorough=thorough)

        task = self._running[key] = asyncio.create_task(run())
        self._tasks.add(task)

        def ended(done: asyncio.Task[bool]) -> None:
            self._tasks.discard(done)
            if self._running.get(key) is done:
                del self._running[key]

        task.add_done_callback(ended)
        return task

    async def _derive(self, scope: Scope, view: View, batch: Batch | None, *, thorough: bool) -> bool:
        """Derive and apply batch after batch; whether the view is up to date after it."""
        try:
            while batch := batch or await self._batch(scope, view, thorough=thorough):
                derived = await self._derived(view, batch)
                apply = partial(self._apply, view, batch, derived, thorough)
                more = await self._store.write(scope, apply, durable=False)
                batch = None
                if not more:
                    return True
            return False
        except asyncio.CancelledError:
            if view.paid:
                with contextlib.suppress(StoreError):
                    release = partial(_release, view.name, self._owner)
                    await self._store.write(scope, release, durable=False)
            raise
        except ProviderError as error:
            log.warning("%s is behind: %s", view.name, error)
            await self._failed(scope, view, batch, str(error), error)
        except StoreError as error:
            log.warning("%s could not be brought up to date: %s", view.name, error)
        except Exception as error:
            log.exception("%s failed", view.name)
            await self._failed(scope, view, batch, "an unexpected failure (see the server's log)", error)
        return False

    async def _batch(self, scope: Scope, view: View, *, thorough: bool) -> Batch | None:
        """What a view derives next; of one that is paid only if nobody else is at it, and claimed."""
        if not view.paid:
            return await self._store.read(scope, lambda tx: self.next(tx, view, thorough=thorough))

        def claim(tx: Tx) -> Batch | None:
            batch = self.next(tx, view, thorough=thorough)
            return batch if batch and self._claim(tx, view.name) else None

        return await self._store.write(scope, claim, durable=False)

    async def _derived(self, view: View, batch: Batch) -> Any:
        if not view.paid:
            return await view.derive(batch.gathered)
        async with self._paid:
            return await view.derive(batch.gathered)

    def _claim(self, tx: Tx, view: str) -> bool:
        owner = tx.cursors.of(view).owner
        gone = owner if owner and not _runs(owner) else ""
        return tx.cursors.claim(view, self._owner, tx.now + _CLAIM, instead_of=gone)

    async def _failed(self, scope: Scope, view: View, batch: Batch | None, reason: str, error: Exception) -> None:
        """Note a failure and try again later; an episode that fails again and again by itself is set aside."""
        rejected = isinstance(error, ProviderRejected) or not isinstance(error, ProviderError)
        wait = timedelta(seconds=error.retry_after if isinstance(error, ProviderError) else 0.0)

        def note(tx: Tx) -> float:
            if rejected and batch and len(batch.seqs) == 1 and tx.cursors.of(view.name).rejections + 1 >= TRIES:
                if self._done(tx, view, batch):
                    tx.cursors.set_aside(view.name, batch.seqs[0], reason)
                    tx.cursors.start_afresh(view.name)
                    log.warning("%s goes on without one episode: %s", view.name, reason)
                return 0.0
            retry_at = tx.cursors.fail(view.name, reason, rejected=rejected, wait=wait)
            return (retry_at - tx.now).total_seconds()

        with contextlib.suppress(StoreError):
            delay = await self._store.write(scope, note, durable=False)
            if self._background is not None:
                self._again(scope, view.name, delay)

    def _again(self, scope: Scope, view: str, delay: float) -> None:
        """Look at a scope once more after a while."""

        async def look() -> None:
            await asyncio.sleep(delay)
            with contextlib.suppress(StoreError):
                await self.catch_up(scope, within=0.0, learning=0.0)

        if (waiting := self._retries.get((scope, view))) is not None:
            waiting.cancel()
        task = self._retries[scope, view] = asyncio.create_task(look())
        task.add_done_callback(partial(self._looked, (scope, view)))

    def _looked(self, key: tuple[Scope, str], done: asyncio.Task[None]) -> None:
        if self._retries.get(key) is done:
            del self._retries[key]

    def next(self, tx: Tx, view: View, *, thorough: bool = False, most: int = 0) -> Batch | None:
        """What a view derives next, at most a batch, or `most` if given; None where there is nothing, or it is not time
        yet."""
        cursor = tx.cursors.of(view.name)
        if cursor.retry_at > tx.now:
            return None
        # a text that is refused must not hold up those beside it, nor must a batch that is too much for a busy model
        size = max(1, (most or view.batch) >> max(cursor.rejections, cursor.failures - 2, 0))
        marked = tx.cursors.marked(view.name, size)
        if not marked and not self._is_ripe(tx, view, cursor, thorough=thorough):
            return None
        seqs = marked or tx.log.positions(cursor.position, size)
        return Batch(cursor.position, tx.epoch(), seqs, bool(marked), view.gather(tx, seqs))

    def apply(self, tx: Tx, view: View, batch: Batch, derived: Any) -> bool:
        """Write a batch, unless something was forgotten meanwhile (then it is derived again) or somebody else was faster;
        whether it was written."""
        if tx.epoch() != batch.epoch or not self._done(tx, view, batch):
            return False
        view.apply(tx, batch.gathered, derived)
        return True

    def _done(self, tx: Tx, view: View, batch: Batch) -> bool:
        if batch.again:
            tx.cursors.unmark(view.name, batch.seqs)
            tx.cursors.release(view.name, self._owner)
            if tx.cursors.of(view.name).position >= tx.log.last():  # else the failures may be those of what comes next
                tx.cursors.start_afresh(view.name)
            return True
        return tx.cursors.advance(view.name, batch.position, batch.seqs[-1])

    def _apply(self, view: View, batch: Batch, derived: Any, thorough: bool, tx: Tx) -> bool:
        """Write a batch; whether there is more to derive."""
        if not self.apply(tx, view, batch, derived):
            tx.cursors.release(view.name, self._owner)
        return self._is_due(tx, view, thorough=thorough)

    def retry_aside(self, tx: Tx, view: str) -> int:
        """Let a view try again what it had set aside; how many episodes that is."""
        seqs = [aside.seq for aside in tx.cursors.aside() if aside.view == view]
        tx.cursors.forget_aside(view, seqs)
        tx.cursors.mark(view, seqs)
        if seqs:
            tx.cursors.start_afresh(view)
        return len(seqs)

    def _all(self) -> list[InlineView | View]:
        return [*self.inline, *self.views]

    # ---- standing

    def names(self) -> list[str]:
        return [view.name for view in self._all()]

    def lags(self, tx: Tx, *, thorough: bool = False) -> list[Lag]:
        """The views that are behind the log in this scope; with `thorough` also those that only wait for a full batch."""
        last = tx.log.last()
        slow = {view.name: view for view in self.views}
        lags = []
        for name in self.names():
            cursor = tx.cursors.of(name)
            if cursor.position >= last:
                continue
            if thorough or cursor.reason or name not in slow or self._is_ripe(tx, slow[name], cursor):
                lags.append(Lag(name, tx.log.count(cursor.position), cursor.reason))
        return lags

    def is_failing(self, tx: Tx) -> bool:
        """Whether a view that nobody waits for could not derive lately."""
        views = [view for view in self.views if not view.awaited and not view.outside]
        return any(tx.cursors.of(view.name).reason for view in views)

    def waiting(self, tx: Tx) -> int:
        """Episodes that wait for somebody outside to derive from them, counted up to a thousand; 0 where no batch is full
        and none has waited for long."""
        outside = [view for view in self.views if view.outside]
        ripe = [view for view in outside if self._is_ripe(tx, view, tx.cursors.of(view.name))]
        return max((tx.log.waiting(tx.cursors.of(view.name).position, _COUNTED)[0] for view in ripe), default=0)

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        for view in self._all():
            view.forget(tx, seqs)
            tx.cursors.forget_aside(view.name, seqs)

    async def rebuild(self, scope: Scope, name: str, progress: Callable[[int], None]) -> None:
        """Throw a view of the scope away and derive it again. `progress` is told how many episodes are still to come."""
        chosen = [view for view in self._all() if view.name == name]
        for view in chosen:

            def reset(tx: Tx, view: InlineView | View = view) -> None:
                view.clear(tx)
                tx.cursors.unmark(view.name, tx.cursors.marked(view.name, 2**31))
                tx.cursors.forget_aside(view.name, [aside.seq for aside in tx.cursors.aside()])
                tx.cursors.reset(view.name)

            await self._store.write(scope, reset)
        while chosen:

            def left(tx: Tx) -> int:
                return tx.log.count(tx.cursors.of(name).position)

            before = await self._store.read(scope, left)
            progress(before)
            if not before:
                return
            others = [view.name for view in self._all() if view.name != name]
            await self.catch_up(scope, within=0.25, learning=0.25, thorough=True, skip=others)
            lags = await self._store.read(scope, self.lags)
            reasons = [lag.reason for lag in lags if lag.view == name and lag.reason]
            if reasons:
                raise ProviderError(f"{name} could not be rebuilt: {reasons[0]}")

    # ---- the background

    def start(self) -> None:
        """Go on catching up, in the background, what is behind in any scope."""
        if self._background is None:
            self._background = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            try:
                for scope in await self._store.due(self._looked_after()):
                    await self.catch_up(scope, within=60.0, learning=0.0)
            except StoreError as error:
                log.warning("catching up failed: %s", error)
            await asyncio.sleep(_POLL_SECONDS)

    def _looked_after(self) -> list[str]:
        """The views that may become due without anything being added: they failed, were left behind, or wait a little."""
        slow = [view.name for view in self.views if not view.outside and view.patience < _LOOKED_AFTER]
        return [*(view.name for view in self.inline), *slow]

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *self._retries.values()]
        tasks += [self._background] if self._background else []
        self._background = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _release(view: str, owner: str, tx: Tx) -> None:
    tx.cursors.release(view, owner)


def _runs(owner: str) -> bool:
    """Whether the process that made a claim may still run; one on another machine is not asked."""
    _, pid, host = owner.split(" ", 2)
    if host != platform.node() or os.name != "posix":
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
