"""What a lease stores while it runs, what it begins from, what is removed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.agent.checkpointing import (
    PLACE,
    Clock,
    HurtStore,
    checkpoint,
    contents,
    desired,
    noise,
    uploader,
    write_step,
)
from volt.contracts.clusters import Checkpoint
from volt.contracts.nodes import DesiredLease
from volt_agent.checkpoints import lease as lease_module
from volt_agent.checkpoints.lease import LeaseCheckpoints, SharedStore
from volt_agent.checkpoints.restoring import CheckpointCorrupt, Restorer
from volt_agent.checkpoints.retention import Retention
from volt_agent.checkpoints.storing import Stored
from volt_agent.store.port import Store

SECONDS_MAX = 20.0


class Shared(SharedStore):
    """The store is there already."""

    def __init__(self, store: HurtStore) -> None:
        super().__init__("file:///nowhere", "test")
        self._hurt = store

    async def get(self) -> Store:
        return self._hurt


class Run:
    """A lease whose workload is the test. `reported` are the steps in the order of their reports."""

    def __init__(self, store: HurtStore, root: Path) -> None:
        self.store = store
        self.checkpoints = LeaseCheckpoints(Shared(store), root, Clock())
        self.reported: dict[int, Stored] = {}
        self.folder = self.checkpoints.folder(1)
        self._changed = asyncio.Condition()

    async def begin(self, wanted: DesiredLease) -> None:
        await self.checkpoints.prepare(wanted)
        self.folder = self.checkpoints.folder(wanted.generation)
        self.checkpoints.begin(wanted, self.report)

    async def report(self, step: int, stored: Stored) -> None:
        assert stored.names <= self.store.objects.keys(), "all of it is stored before it is told"
        async with self._changed:
            self.reported[step] = stored
            self._changed.notify_all()

    async def until(self, step: int) -> Stored:
        async with asyncio.timeout(SECONDS_MAX), self._changed:
            await self._changed.wait_for(lambda: step in self.reported)
            return self.reported[step]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(lease_module, "RETRY_SECONDS", 0.002)


@asynccontextmanager
async def running(root: Path, wanted: DesiredLease | None = None, store: HurtStore | None = None) -> AsyncIterator[Run]:
    run = Run(store or HurtStore(), root)
    await run.begin(wanted or desired())
    try:
        yield run
    finally:
        await run.checkpoints.end()


async def eventually(condition: Callable[[], bool]) -> None:
    """Lets the other tasks go on until something is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0)


async def test_completed_steps_are_stored_and_reported_in_their_order(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        for step in (30, 4, 200):
            write_step(run.folder, step, {"weights": b"%d" % step})
        for step in (4, 30, 200):
            await run.until(step)
        assert list(run.reported)[-1] == 200


async def test_a_half_written_folder_is_never_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        (run.folder / "5.tmp").mkdir()
        (run.folder / "5.tmp/weights").write_bytes(b"half")
        write_step(run.folder, 6, {"weights": b"whole"})
        await run.until(6)
        await run.checkpoints.drain()
        assert list(run.reported) == [6]
        (run.folder / "5.tmp").rename(run.folder / "7")
        await run.until(7)


async def test_a_folder_that_is_refused_does_not_hold_up_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        draft = run.folder / "draft"
        draft.mkdir()
        (draft / "out").symlink_to("/etc/passwd")
        draft.rename(run.folder / "1")
        write_step(run.folder, 2, {"weights": b"x"})
        await run.until(2)
        assert list(run.reported) == [2]


async def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    store = HurtStore()
    store.away = True
    async with running(tmp_path, store=store) as run:
        write_step(run.folder, 1, {"weights": b"x"})
        await asyncio.sleep(0)
        assert not run.reported
        store.away = False
        await run.until(1)


async def test_draining_waits_for_what_the_workload_has_completed(tmp_path: Path) -> None:
    store, gate = HurtStore(), asyncio.Event()

    async def wait(_: str) -> None:
        await gate.wait()

    store.spoil = wait
    async with running(tmp_path, store=store) as run:
        write_step(run.folder, 1, {"weights": b"x"})
        draining = asyncio.create_task(run.checkpoints.drain())
        await eventually(lambda: bool(store.spoil) and not draining.done())
        gate.set()
        await draining
        assert list(run.reported) == [1]


async def test_a_generation_begins_with_exactly_what_was_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        write_step(run.folder, 10, {"weights": b"ten"})
        committed = checkpoint(10, await run.until(10))
        write_step(run.folder, 20, {"weights": b"stored, not committed"})
        await run.until(20)
        (run.folder / "30.tmp").mkdir()
        old = run.folder
        await run.begin(desired(2, resume=committed, kept=(committed,)))
        assert contents(run.folder) == {"10/weights": b"ten"}
        assert not old.exists()
        write_step(run.folder, 11, {"weights": b"eleven"})
        await run.until(11)
        assert list(run.reported) == [10, 20, 11], "what was restored is not stored again"


async def test_what_a_stale_process_writes_is_seen_by_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        stale = run.folder
        await run.begin(desired(2))
        write_step(stale, 99, {"weights": b"stale"})
        write_step(run.folder, 1, {"weights": b"x"})
        await run.until(1)
        await run.checkpoints.drain()
        assert list(run.reported) == [1]
        assert contents(run.folder) == {"1/weights": b"x"}


async def test_a_corrupt_checkpoint_fails_to_prepare_and_says_which(tmp_path: Path) -> None:
    store = HurtStore()
    write_step(tmp_path / "w", 10, {"weights": b"ten"})
    committed = checkpoint(10, await uploader(store).store(tmp_path / "w", "10"))
    for name in store.objects:
        store.objects[name] += b"!"
    run = Run(store, tmp_path / "lease")
    with pytest.raises(CheckpointCorrupt, match="lab/j1/0/1/"):
        await run.begin(desired(2, resume=committed))
    assert not list((tmp_path / "lease").rglob("10"))


async def test_preparing_the_same_again_changes_nothing_and_another_step_does(tmp_path: Path) -> None:
    store = HurtStore()
    write_step(tmp_path / "w", 10, {"weights": b"ten"})
    committed = checkpoint(10, await uploader(store).store(tmp_path / "w", "10"))
    run = Run(store, tmp_path / "lease")
    await run.checkpoints.prepare(desired(2))
    await run.checkpoints.prepare(desired(2, resume=committed))
    (run.checkpoints.folder(2) / "mine").write_bytes(b"x")
    await run.checkpoints.prepare(desired(2, resume=committed))
    assert contents(run.checkpoints.folder(2)) == {"10/weights": b"ten", "mine": b"x"}
    await run.checkpoints.clear()
    assert not (tmp_path / "lease").exists()


async def test_what_is_superseded_is_removed_and_what_is_kept_can_be_restored(tmp_path: Path) -> None:
    frozen = noise(2)
    async with running(tmp_path / "lease") as run:
        committed: list[Checkpoint] = []
        for step in (1, 2, 3, 4):
            write_step(run.folder, step, {"frozen": frozen, "weights": b"%d" % step})
            committed.append(checkpoint(step, await run.until(step)))
            run.checkpoints.tell(tuple(committed[-2:]))
        needed = run.reported[3].names | run.reported[4].names
        await eventually(lambda: run.store.objects.keys() == needed)
        for one in committed[-2:]:
            target = tmp_path / f"{one.step}"
            await Restorer(run.store, PLACE).restore(one, target, ())
            assert contents(target / str(one.step)) == {"frozen": frozen, "weights": b"%d" % one.step}


async def test_what_was_committed_stays_when_a_generation_is_ended_and_no_more_is_said_of_it(tmp_path: Path) -> None:
    store, wanted = HurtStore(), desired(2)
    write_step(tmp_path / "w", 10, {"weights": b"ten"})
    stored = await uploader(store).store(tmp_path / "w", "10")
    committed = checkpoint(10, stored)
    async with running(tmp_path / "lease", replace(wanted, resume=committed, kept=(committed,)), store) as run:
        run.checkpoints.tell(())
        write_step(run.folder, 20, {"weights": b"twenty"})
        await run.until(20)
        await run.checkpoints.drain()
        assert stored.names <= store.objects.keys()
    async with running(tmp_path / "other", desired(3), store) as run:
        write_step(run.folder, 30, {"weights": b"thirty"})
        await run.until(30)
        assert stored.names <= store.objects.keys(), "nor by one that was never told of any"


async def test_uncommitted_leftovers_of_older_generations_are_removed(tmp_path: Path) -> None:
    store, sizes = HurtStore(), {}
    for generation in (1, 2):
        for step in (1, 2):
            write_step(tmp_path / f"{generation}", step, {"weights": noise(1)})
            place = PLACE._replace(generation=generation)
            sizes[generation, step] = await uploader(store, place).store(tmp_path / f"{generation}", str(step))
    kept = checkpoint(1, sizes[1, 1])
    removed = await Retention(store, PLACE._replace(generation=2), 1).keep((kept,), [sizes[2, 2]])
    assert store.objects.keys() == sizes[1, 1].names | sizes[2, 2].names
    assert removed == sizes[1, 2].names | sizes[2, 1].names


async def test_an_agent_that_is_cut_off_takes_nothing_away_from_later_checkpoints(tmp_path: Path) -> None:
    store = HurtStore()
    later, own, other = PLACE._replace(generation=3), PLACE._replace(generation=2), PLACE._replace(rank=1)
    stored = {}
    for place in (PLACE, own, later, other):
        write_step(tmp_path / place.prefix, 5, {"weights": noise(1)})
        stored[place] = await uploader(store, place).store(tmp_path / place.prefix, "5")
    stale = Retention(store, own, 2)
    await stale.keep((checkpoint(5, stored[PLACE]),), [stored[own]])
    assert store.objects.keys() == frozenset().union(*(one.names for one in stored.values())), (
        "not even what it reported"
    )
    await stale.keep((checkpoint(5, stored[PLACE]),), [])
    assert stored[later].names | stored[other].names | stored[PLACE].names == store.objects.keys()


async def test_rank_0_removes_what_ranks_that_are_no_more_have_left(tmp_path: Path) -> None:
    store, stored = HurtStore(), []
    for rank in range(3):
        place = PLACE._replace(rank=rank)
        for step in (1, 2):
            write_step(tmp_path / f"{rank}", step, {"weights": noise(1)})
            stored.append(await uploader(store, place).store(tmp_path / f"{rank}", str(step)))
    kept = checkpoint(2, stored[1], stored[3], stored[5])
    of_rank_0 = Retention(store, PLACE._replace(generation=2), 2)
    mine = Checkpoint(generation=1, step=2, parts=(kept.parts[0], kept.parts[2]))
    assert await of_rank_0.keep((mine,), []) == stored[0].names | stored[4].names, "rank 1 looks after its own"
    assert await of_rank_0.keep((), []) == stored[1].names | stored[5].names


async def test_nothing_is_removed_when_it_cannot_be_told_what_is_needed(tmp_path: Path) -> None:
    store = HurtStore()
    write_step(tmp_path, 1, {"weights": b"1"})
    write_step(tmp_path, 2, {"weights": b"2"})
    sender = uploader(store)
    first, second = await sender.store(tmp_path, "1"), await sender.store(tmp_path, "2")
    store.objects[PLACE.name(second.manifest)] = b"corrupt"
    assert await Retention(store, PLACE._replace(generation=2), 1).keep((checkpoint(2, second),), []) == frozenset()
    assert first.names <= store.objects.keys()
