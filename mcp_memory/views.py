"""How any view follows the log.

A view is derived from the episodes of a scope, in the order of the log, and can be thrown away and derived again. It has
a cursor per scope. There are two kinds:

- an `InlineView` is cheap and pure: it is brought up to date inside one write transaction, together with what it follows;
- a `View` is slow or can fail (it embeds, it asks a model): it derives outside any transaction, and is applied in one that
  compares and sets the cursor and the epoch, so that two processes never apply the same batch twice and nothing that was
  forgotten meanwhile comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from mcp_memory.errors import ProviderError, StoreError
from mcp_memory.protocols import Store, Tx
from mcp_memory.types import Episode, Lag, Scope

INLINE_MOST = 1_000
"""Episodes that one transaction brings an inline view forward by."""

_CLAIM = timedelta(minutes=2)
_POLL_SECONDS = 15.0

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
    def paid(self) -> bool:
        """Whether deriving costs enough that a batch is claimed, so that no other process derives it too."""
        ...

    def gather(self, tx: Tx, episodes: Sequence[Episode]) -> Any:
        """What deriving these episodes needs to know, read in one snapshot."""
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
        self._owner = secrets.token_hex(8)
        self._running: dict[tuple[Scope, str], asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[bool]] = set()
        self._background: asyncio.Task[None] | None = None

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
        self, scope: Scope, *, within: float, skip: Sequence[str] = (), also: Sequence[View] = ()
    ) -> None:
        """Bring every view of the scope up to date: inline ones fully, the others for at most `within` seconds; what is
        not done by then goes on in the background. `also` are views that are not kept up to date otherwise."""

        def behind(tx: Tx) -> tuple[bool, list[View]]:
            inline = any(self._is_due(tx, view.name) for view in self.inline if view.name not in skip)
            return inline, [view for view in (*self.views, *also) if self._is_due(tx, view.name)]

        while True:
            inline, views = await self._store.read(scope, behind)
            if not inline:
                break
            await self._store.write(scope, lambda tx: self.follow(tx, skip=skip), durable=False)
        await self._wait([self._task(scope, view, None) for view in views], within)

    def _is_due(self, tx: Tx, view: str) -> bool:
        """Whether there is something to derive that may be tried by now."""
        cursor = tx.cursors.of(view)
        return cursor.retry_at <= tx.now and (cursor.position < tx.log.last() or bool(tx.cursors.marked(view, 1)))

    def gather(self, tx: Tx) -> list[tuple[View, Batch]]:
        """What the slow views have to derive next, read in the transaction that appended it."""
        return [(view, batch) for view in self.views if (batch := self._next(tx, view)) is not None]

    async def derive(self, scope: Scope, gathered: Sequence[tuple[View, Batch]], *, within: float) -> bool:
        """Go on from what was gathered until the slow views are up to date, waiting at most `within` seconds; whether
        they are."""
        done = await self._wait([self._task(scope, view, batch) for view, batch in gathered], within)
        return done and len(gathered) == len(self.views)

    async def _wait(self, tasks: Sequence[asyncio.Task[bool]], within: float) -> bool:
        if not tasks:
            return True
        ended, running = await asyncio.wait(tasks, timeout=within)
        return not running and all(task.result() for task in ended if not task.cancelled())

    def _task(self, scope: Scope, view: View, first: Batch | None) -> asyncio.Task[bool]:
        """A task that brings a view up to date, after the one that may be running."""
        key = (scope, view.name)
        before = self._running.get(key)

        async def run() -> bool:
            if before is not None:
                await asyncio.wait({before})
            return await self._derive(scope, view, first)

        task = self._running[key] = asyncio.create_task(run())
        self._tasks.add(task)

        def ended(done: asyncio.Task[bool]) -> None:
            self._tasks.discard(done)
            if self._running.get(key) is done:
                del self._running[key]

        task.add_done_callback(ended)
        return task

    async def _derive(self, scope: Scope, view: View, batch: Batch | None) -> bool:
        """Derive and apply batch after batch; whether the view is up to date after it."""
        try:
            while batch := batch or await self._store.read(scope, lambda tx: self._next(tx, view)):
                if view.paid and not await self._store.write(
                    scope, lambda tx: tx.cursors.claim(view.name, self._owner, tx.now + _CLAIM), durable=False
                ):
                    return False
                derived = await view.derive(batch.gathered)
                more = await self._store.write(scope, partial(self._apply, view, batch, derived), durable=False)
                batch = None
                if not more:
                    return True
            return False
        except ProviderError as error:
            log.warning("%s is behind: %s", view.name, error)
            await self._store.write(scope, partial(_note_failure, view.name, str(error)), durable=False)
        except StoreError as error:
            log.warning("%s could not be brought up to date: %s", view.name, error)
        except Exception:
            log.exception("%s failed", view.name)
            reason = "an unexpected failure (see the server's log)"
            with contextlib.suppress(StoreError):
                await self._store.write(scope, partial(_note_failure, view.name, reason), durable=False)
        return False

    def _next(self, tx: Tx, view: View) -> Batch | None:
        cursor = tx.cursors.of(view.name)
        if cursor.retry_at > tx.now:
            return None
        # after failures the batch is smaller, so that one bad text cannot hold up all others
        size = max(1, view.batch >> cursor.failures)
        marked = tx.cursors.marked(view.name, size)
        episodes = tx.log.at(marked) if marked else tx.log.after(cursor.position, size)
        if not marked and not episodes:
            return None
        seqs = marked or [episode.seq for episode in episodes]
        return Batch(cursor.position, tx.epoch(), seqs, bool(marked), view.gather(tx, episodes))

    def _apply(self, view: View, batch: Batch, derived: Any, tx: Tx) -> bool:
        """Write a batch, unless something was forgotten meanwhile (then it is derived again) or another process was
        faster; whether there is more to derive."""
        if tx.epoch() == batch.epoch:
            if batch.again:
                tx.cursors.unmark(view.name, batch.seqs)
                view.apply(tx, batch.gathered, derived)
            elif tx.cursors.advance(view.name, batch.position, batch.seqs[-1]):
                view.apply(tx, batch.gathered, derived)
        return self._is_due(tx, view.name)

    def _all(self) -> list[InlineView | View]:
        return [*self.inline, *self.views]

    # ---- standing

    def names(self) -> list[str]:
        return [view.name for view in self._all()]

    def lags(self, tx: Tx) -> list[Lag]:
        """The views that are behind the log in this scope."""
        last = tx.log.last()
        lags = []
        for view in self._all():
            cursor = tx.cursors.of(view.name)
            if cursor.position < last:
                lags.append(Lag(view.name, tx.log.count(cursor.position), cursor.reason))
        return lags

    def forget(self, tx: Tx, seqs: Sequence[int]) -> None:
        for view in self._all():
            view.forget(tx, seqs)

    async def rebuild(self, scope: Scope, name: str, progress: Callable[[int], None]) -> None:
        """Throw a view of the scope away and derive it again. `progress` is told how many episodes are still to come."""
        chosen = [view for view in self._all() if view.name == name]
        for view in chosen:

            def reset(tx: Tx, view: InlineView | View = view) -> None:
                view.clear(tx)
                tx.cursors.unmark(view.name, tx.cursors.marked(view.name, 2**31))
                tx.cursors.reset(view.name)

            await self._store.write(scope, reset)
        while chosen:

            def left(tx: Tx) -> int:
                return tx.log.count(tx.cursors.of(name).position)

            before = await self._store.read(scope, left)
            progress(before)
            if not before:
                return
            await self.catch_up(scope, within=0.25)
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
                for scope in await self._store.due([view.name for view in self._all()]):
                    await self.catch_up(scope, within=60.0)
            except StoreError as error:
                log.warning("catching up failed: %s", error)
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *([self._background] if self._background else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background = None


def _note_failure(view: str, reason: str, tx: Tx) -> None:
    tx.cursors.fail(view, reason)
