"""The checkpoints of one lease: what it begins from, what it stores while it runs, what it leaves.

    prepare ──▶ the generation's folder, with the committed step in it and nothing else
    begin   ──▶ watch ──completed folder──▶ store ──▶ report ──▶ watch ...  ──what is kept changed──▶ remove

Each generation has a folder of its own: what a process of an older one writes late is seen by nobody. Completed steps
are stored in their order, so that all ranks store the same ones.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from volt.contracts.checkpoints import ObjectPlace
from volt.contracts.clusters import Checkpoint
from volt.contracts.nodes import DesiredLease
from volt_agent.checkpoints.folders import FolderChanged, FolderRefused, completed
from volt_agent.checkpoints.restoring import CheckpointUnavailable, CheckpointUnusable, Restorer
from volt_agent.checkpoints.retention import Retention
from volt_agent.checkpoints.storing import Stored, Uploader
from volt_agent.domain import Steps
from volt_agent.store.opening import open_store
from volt_agent.store.port import Store, StoreUnavailable

POLL_SECONDS = 0.2
RETRY_SECONDS = 2.0
CHANGED_ATTEMPTS_MAX = 50
"""How often a folder may have changed while it was read until it counts as one that was never finished."""
DRAIN_SECONDS_MAX = 600.0
"""For how long the end of a workload waits for its last checkpoint to be stored."""
FOLDER_PREFIX = "checkpoints-"

_log = structlog.get_logger("volt.checkpoints")

Report = Callable[[int, Stored], Awaitable[None]]
"""Says that a step is stored whole."""


class SharedStore:
    """The node's one store, opened when it is first needed: most of what a node does goes on without it."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._store: Store | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Store:
        """Raises StoreUnavailable."""
        async with self._opening:
            if self._store is None:
                self._store = await open_store(self._url, self._name)
            return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class LeaseCheckpoints:
    """The checkpoints of one lease, over its generations."""

    def __init__(self, shared: SharedStore, root: Path, now_seconds: Callable[[], float]) -> None:
        """`root` is the lease's own folder."""
        self._shared, self._root, self._now_seconds = shared, root, now_seconds
        self._prepared: tuple[int, int | None] | None = None
        self._following: asyncio.Task[None] | None = None

    def folder(self, generation: int) -> Path:
        """What the workload of a generation is told."""
        return self._root / f"{FOLDER_PREFIX}{generation}"

    async def prepare(self, desired: DesiredLease) -> None:
        """Makes the generation's folder, with exactly what it resumes from; at once if that was done before.

        Raises CheckpointUnusable, OSError.
        """
        wanted = (desired.generation, desired.resume.step if desired.resume else None)
        if self._prepared == wanted:
            return
        self._prepared = None
        await self.end()
        target, earlier = self.folder(desired.generation), await asyncio.to_thread(self._earlier, desired.generation)
        await asyncio.to_thread(_make_afresh, target)
        if desired.resume is not None:
            restorer = Restorer(await self._opened(), place_of(desired))
            await restorer.restore(desired.resume, target, earlier)
            _log.info("restored", lease=desired.lease, generation=desired.generation, step=desired.resume.step)
        for folder in earlier:
            await asyncio.to_thread(shutil.rmtree, folder)
        self._prepared = wanted

    @property
    def steps(self) -> Steps:
        """How far the present generation has come."""
        return Steps() if self._following is None else self._follower.steps

    def begin(self, desired: DesiredLease, report: Report) -> None:
        """From now on what the workload of this generation completes is stored and reported."""
        follower = Follower(self._shared, self.folder(desired.generation), desired, report, self._now_seconds)
        self._follower = follower
        self._following = asyncio.create_task(follower.follow())
        self._following.add_done_callback(_tell_failure)

    def tell(self, kept: tuple[Checkpoint, ...]) -> None:
        """What is to be kept has changed."""
        if self._following is not None:
            self._follower.tell(kept)

    async def drain(self, seconds: float = DRAIN_SECONDS_MAX) -> None:
        """Waits until all that the workload has completed is stored and reported, for so long at most."""
        if self._following is None or self._following.done():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._follower.drained()
        except TimeoutError:
            _log.warning("last_checkpoint_not_stored", folder=str(self._root), seconds=seconds)

    async def end(self) -> None:
        """Nothing of the present generation is stored any more."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])

    async def clear(self) -> None:
        """Leaves nothing on the disk."""
        await self.end()
        self._prepared = None
        if self._root.exists():
            await asyncio.to_thread(shutil.rmtree, self._root)

    async def _opened(self) -> Store:
        try:
            return await self._shared.get()
        except StoreUnavailable as error:
            raise CheckpointUnavailable(str(error)) from error

    def _earlier(self, generation: int) -> list[Path]:
        """The folders of earlier generations, the last one first."""
        numbers = (path.name.removeprefix(FOLDER_PREFIX) for path in self._root.glob(f"{FOLDER_PREFIX}*"))
        earlier = sorted((int(number) for number in numbers if int(number) < generation), reverse=True)
        return [self.folder(number) for number in earlier]


class Follower:
    """Stores what one generation completes, until it is cancelled."""

    def __init__(
        self,
        shared: SharedStore,
        root: Path,
        desired: DesiredLease,
        report: Report,
        now_seconds: Callable[[], float],
    ) -> None:
        assert desired.manifest is not None, "a lease starts with its manifest"
        self._shared, self._root, self._desired, self._report = shared, root, desired, report
        self._place, self._ranks = place_of(desired), len(desired.manifest.nodes)
        self._now_seconds = now_seconds
        self._kept, self._is_told = desired.kept, True
        self._floor = desired.resume.step if desired.resume else -1
        self._changed: dict[int, int] = {}
        self._reported: dict[int, Stored] = {}
        self.steps = Steps()
        self._wake, self._drain_asked, self._drained = asyncio.Event(), False, asyncio.Event()

    def tell(self, kept: tuple[Checkpoint, ...]) -> None:
        """What is to be kept from now on. Nothing is no word about it: what was committed stays so."""
        if kept and kept != self._kept:
            self._kept, self._is_told = kept, True
            self._wake.set()

    async def drained(self) -> None:
        """Returns when a look at the folder that begins after this call finds nothing left to store."""
        self._drain_asked = True
        self._wake.set()
        await self._drained.wait()

    async def follow(self) -> None:
        """Watches, stores, reports and removes. A store that is away is waited for."""
        uploader: Uploader | None = None
        while True:
            self._wake.clear()
            try:
                is_asked = self._drain_asked
                step = await self._next()
                if step is None and is_asked:
                    self._drained.set()
                if step is not None or (self._is_told and self._kept):
                    uploader = uploader or await self._begin()
                    await self._turn(uploader, step)
            except StoreUnavailable as error:
                _log.warning("checkpoint_waits", place=self._place.prefix, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if step is None:
                await self._rest()

    async def _begin(self) -> Uploader:
        store = await self._shared.get()
        uploader = Uploader(store, self._place, self._now_seconds)
        await uploader.learn()
        self._retention = Retention(store, self._place, self._ranks)
        resume = self._desired.resume
        for part in resume.parts if resume else ():
            if resume is not None and part.rank == self._place.rank:
                place = self._place._replace(generation=resume.generation)
                try:
                    folder, _ = await Restorer(store, self._place).read(place, part.manifest)
                except CheckpointUnusable as error:
                    _log.warning("nothing_inherited", place=place.prefix, error=str(error))
                else:
                    uploader.inherit(folder, resume.generation)
        return uploader

    async def _next(self) -> tuple[int, str] | None:
        """The lowest completed step that is not stored yet, and its name."""
        found = await asyncio.to_thread(completed, self._root)
        self.steps = self.steps._replace(written=max(found, default=None))
        return min(((step, name) for step, name in found.items() if step > self._floor), default=None)

    async def _turn(self, uploader: Uploader, step: tuple[int, str] | None) -> None:
        """Raises StoreUnavailable."""
        if self._is_told and self._kept:
            self._is_told = False
            newest = self._kept[-1].step
            self._reported = {one: stored for one, stored in self._reported.items() if one >= newest}
            uploader.forget(await self._retention.keep(self._kept, self._reported.values()))
        if step is not None:
            await self._store(uploader, *step)

    async def _store(self, uploader: Uploader, step: int, name: str) -> None:
        try:
            stored = await uploader.store(self._root, name)
        except FolderChanged as error:
            attempts = self._changed[step] = self._changed.get(step, 0) + 1
            if attempts >= CHANGED_ATTEMPTS_MAX:
                self._pass_over(step, str(error))
            await asyncio.sleep(POLL_SECONDS)
        except FolderRefused as error:
            self._pass_over(step, str(error))
        else:
            # What it had reported must be remembered before anybody can commit it.
            self._reported[step] = stored
            await self._report(step, stored)
            self._floor = step
            self.steps = self.steps._replace(stored=step)
            _log.info("stored", place=self._place.prefix, step=step, size_bytes=stored.size_bytes)

    def _pass_over(self, step: int, why: str) -> None:
        self._floor = step
        _log.error("checkpoint_not_stored", place=self._place.prefix, step=step, why=why)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return


def place_of(desired: DesiredLease) -> ObjectPlace:
    """Where the lease stores in its generation."""
    return ObjectPlace(desired.account, desired.job, desired.generation, desired.node_rank)


def _tell_failure(following: asyncio.Task[None]) -> None:
    error = None if following.cancelled() else following.exception()
    if error is not None:
        _log.error("checkpoints_not_followed", exc_info=error)


def _make_afresh(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
