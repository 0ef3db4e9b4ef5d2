"""`volt ledger audit`, `volt market audit`, `volt market verify`: what can be proved from the log alone."""

import asyncio
import subprocess
import sys
from pathlib import Path

import click
import msgspec
from rich.text import Text

from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.audit.report import LedgerReport, MarketReport
from volt.cli.shared import CONNECT_SECONDS_MAX, EXIT_FAILED, Group, data_option, err, json_option, out, print_json
from volt.cli.tables import table
from volt.contracts.errors import Unavailable
from volt.contracts.log import Entry
from volt.contracts.streams import LOG
from volt.contracts.units import format_usd
from volt.embedded import data_folder, read_context
from volt.runtime import telemetry
from volt.runtime.log import Log, Unreadable
from volt.runtime.nats import NatsBus


@click.group(cls=Group)
def ledger() -> None:
    """Look at the ledger."""
    telemetry.set_up("cli")


@ledger.command("audit")
@data_option
@json_option
def audit_(data: Path | None, as_json: bool) -> None:
    """Recompute every bill and every balance from the log; exit 1 if anything is wrong."""
    report = audit(asyncio.run(_entries(data)))
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report.is_balanced:
        sys.exit(EXIT_FAILED)


@click.command("audit")
@data_option
@json_option
def market_audit(data: Path | None, as_json: bool) -> None:
    """Check every grant against bids, jobs and leases from the log; exit 1 if a rule was broken."""
    telemetry.set_up("cli")
    report = audit_market(asyncio.run(_entries(data)))
    if as_json:
        print_json(report)
    else:
        _show_market(report)
    if not report.is_kept:
        sys.exit(EXIT_FAILED)


@click.command()
@data_option
@click.option("--from", "from_seq", type=int, default=0, help="Only passes from this place in the log on.")
@json_option
def verify(data: Path | None, from_seq: int, as_json: bool) -> None:
    """Repeat every pass from the log and compare it, byte for byte; exit 1 if one comes out otherwise."""
    nats_url = read_context(data_folder(data)).nats_url
    telemetry.set_up("cli")
    asyncio.run(_reach(nats_url))
    # The matcher's own program repeats the passes; it is no part of the library.
    command = [sys.executable, "-P", "-m", "volt_matcher.replay", nats_url, "--from", str(from_seq)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # our own program
    *differences, total = done.stdout.splitlines() or [b""]
    try:
        told = msgspec.json.decode(total, type=dict[str, int])
    except msgspec.DecodeError as error:
        raise Unavailable("the passes could not be repeated; what is above says why") from error
    if as_json:
        click.echo(b'{"differences":[%s],"total":%s}' % (b",".join(differences), total))
    else:
        for line in differences:
            one = msgspec.json.decode(line, type=dict[str, int | str])
            out.print(
                Text(f"pass {one['seq']}: {one['part']} says\n  {one['said']}\nand should say\n  {one['should_be']}")
            )
        out.print(f"{told['passes']} passes repeated, {told['different']} of them come out otherwise")
    if told["different"]:
        sys.exit(EXIT_FAILED)


async def _reach(nats_url: str) -> None:
    """Raises BusUnavailable, sooner and in fewer words than another program would."""
    bus = await NatsBus.connect(nats_url, "verify", CONNECT_SECONDS_MAX)
    await bus.close()


async def _entries(data: Path | None) -> list[Entry]:
    """All that can be read of the log. Raises BusUnavailable, and whatever a context can lack."""
    nats_url = read_context(data_folder(data)).nats_url
    bus = await NatsBus.connect(nats_url, "audit", CONNECT_SECONDS_MAX)
    entries: list[Entry] = []
    try:
        async for page in Log(bus).read(LOG.subjects):
            for entry in page.entries:
                if isinstance(entry, Unreadable):
                    err.print(f"[yellow]unreadable[/yellow] event {entry.record.seq} on {entry.record.subject}")
                else:
                    entries.append(entry)
            if page.pending == 0:
                break
    finally:
        await bus.close()
    return entries


def _show(report: LedgerReport) -> None:
    rows = [
        (
            lease.lease,
            job.stage,
            lease.node,
            f"{lease.covered_ms / 1000:.3f}",
            f"{lease.billable_ms / 1000:.3f}",
            format_usd(lease.price_microusd_per_gpu_hour, 2),
            format_usd(lease.due_microusd),
            format_usd(lease.posted_microusd),
        )
        for job in report.jobs
        for lease in job.leases
    ]
    columns = ("lease", "job is", "node", "covered s", "billable s", "$ per GPU-hour", "due $", "posted $")
    out.print(table(columns, rows, right=frozenset(columns[3:])))
    out.print(
        f"charged ${format_usd(report.charged_microusd)} = paid ${format_usd(report.paid_microusd)} "
        f"+ fee ${format_usd(report.fee_microusd)}"
    )
    for finding in report.findings:
        out.print(Text(f"{finding.code} at {finding.seq}, {finding.about}: {finding.message}", style="red"))
    verdict = "[green]balanced[/green]" if report.is_balanced else f"[red]{len(report.findings)} findings[/red]"
    out.print(f"{verdict}: {len(report.jobs)} jobs, every bill recomputed from the log")


def _show_market(report: MarketReport) -> None:
    for finding in report.findings:
        out.print(Text(f"{finding.code} at {finding.seq}, {finding.about}: {finding.message}", style="red"))
    verdict = "[green]every rule kept[/green]" if report.is_kept else f"[red]{len(report.findings)} findings[/red]"
    out.print(
        f"{verdict}: {report.passes} passes, {report.gangs} gangs, {report.leases} leases, "
        f"each checked against the log; {report.void} gangs void, {report.held} leases not cleared yet"
    )
