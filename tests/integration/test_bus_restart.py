"""The nats-server dies in the middle of a job and comes back: nothing acknowledged is lost, and the job goes on."""

import asyncio

from benchmarks.market import Market, Seen, market
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.cli.demo.farm import Site
from volt.contracts.clusters import ClusterForming, ClusterReady, ClusterReleased, LeaseCleared, LeaseResumed
from volt.contracts.ledger import JobClosed
from volt.contracts.nodes import BeatsCovered, NodeLost
from volt.contracts.timing import EMBEDDED

SITES = tuple(Site(f"node-{number}", "north", "A", 1_000_000 + number) for number in range(3))
LONG = ("sleep", "300")
RESTARTS = 2


async def test_a_job_outlives_the_bus() -> None:
    async with market(SITES) as run:
        job, _ = await run.request(LONG)
        await run.observer.event(job, ClusterReady)
        for _ in range(RESTARTS):
            known = [seen.entry for seen in run.observer.all]
            await run.control_plane.service("nats").kill()
            await run.control_plane.service("nats").until_ready()
            await _covered_again(run, len(known))
            assert [seen.entry for seen in run.observer.all][: len(known)] == known
        await run.release(job)
        await run.observer.event(job, ClusterReleased)
        await run.observer.event(job, JobClosed)
        await run.observer.until(lambda: _all_cleared(run, job))
        _went_on_undisturbed(run, job)


async def test_an_outage_longer_than_the_fence_is_a_pause_that_nobody_pays_for() -> None:
    away_ms = 2 * EMBEDDED.fence_after_ms
    async with market(SITES) as run:
        job, _ = await run.request(LONG)
        ready = (await run.observer.event(job, ClusterReady)).entry
        bus = run.control_plane.service("nats")
        bus.auto_restart = False
        await bus.kill()
        await asyncio.sleep(away_ms / 1000)
        await bus.restart()
        bus.auto_restart = True
        await run.observer.until(lambda: _all_resumed(run, job))
        await _covered_again(run, len(run.observer.all))
        await run.release(job)
        released = (await run.observer.event(job, ClusterReleased)).entry
        await run.observer.event(job, JobClosed)
        await run.observer.until(lambda: _all_cleared(run, job))
        _went_on_undisturbed(run, job)
        bill = next(one for one in audit([seen.entry for seen in run.observer.all]).jobs if one.job == job)
        for line in bill.leases:
            assert 0 < line.billable_ms <= released.at_ms - ready.at_ms - away_ms


async def _covered_again(run: Market, after: int) -> None:
    """Beats that were read after the restart are on record again."""

    def found() -> Seen | None:
        later = [seen for seen in run.observer.all[after:] if isinstance(seen.entry.event, BeatsCovered)]
        return next((seen for seen in later if getattr(seen.entry.event, "spans", ())), None)

    await run.observer.until(found)


def _all_resumed(run: Market, job: str) -> Seen | None:
    resumed = [seen for seen in run.observer.by_job[job] if isinstance(seen.entry.event, LeaseResumed)]
    return resumed[-1] if len({getattr(seen.entry.event, "lease", "") for seen in resumed}) == 2 else None


def _all_cleared(run: Market, job: str) -> Seen | None:
    cleared = [seen for seen in run.observer.by_job[job] if isinstance(seen.entry.event, LeaseCleared)]
    return cleared[-1] if len(cleared) == 2 else None


def _went_on_undisturbed(run: Market, job: str) -> None:
    events = [seen.entry.event for seen in run.observer.all]
    assert [event for event in events if isinstance(event, NodeLost)] == []
    formed = [event for event in events if isinstance(event, ClusterForming) and event.job == job]
    assert len(formed) == 1
    entries = [seen.entry for seen in run.observer.all]
    report, market_report = audit(entries), audit_market(entries)
    assert report.findings == ()
    assert report.charged_microusd > 0
    assert (market_report.findings, market_report.held) == ((), 0)
