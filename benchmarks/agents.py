"""Many simulated agents in one process, for load: `python -m benchmarks.agents <nats url> <account> <nodes> <profile>`.

Each beats as the beat process does, at the pace of the fleet, and reports at once what its desired state asks for,
though nothing runs. Lines on stdin: `die <node> ...` (for good) and `count`, which is answered by the number of beats
acknowledged so far. The end of stdin ends all of them.
"""

import asyncio
import random
import sys

from volt.contracts.bids import Gpu, PlaceBid, Terms
from volt.contracts.errors import BusUnavailable
from volt.contracts.fleet import Pace
from volt.contracts.messages import Decoder, encode
from volt.contracts.nodes import (
    Desired,
    DesiredLease,
    Heartbeat,
    LeaseBeat,
    Report,
    ReportCleared,
    ReportEnded,
    ReportPrepared,
    ReportStarted,
)
from volt.contracts.streams import DESIRED, HEARTBEATS
from volt.contracts.subjects import DESIRED_FLEET, command_bid, command_report, desired, heartbeats
from volt.contracts.timing import PROFILES, Timing
from volt.runtime.nats import NatsBus
from volt.runtime.ports import SequenceConflict
from volt_agent.beat import JITTER_MIN
from volt_agent.reports import Whose

ASK_MICROUSD = 10_000
PORT = 29_500
ACKNOWLEDGED_SECONDS_MAX = 2.0


class Agents:
    """The nodes `<account>-0`, `<account>-1`, ... of one account."""

    def __init__(self, bus: NatsBus, account: str, nodes: int, timing: Timing) -> None:
        self.acknowledged = 0
        self.dead: set[str] = set()
        self.names = [f"{account}-{number}" for number in range(nodes)]
        self._bus, self._account, self._timing = bus, account, timing
        self._pace = Pace(beat_ms=timing.beat_ms, fence_after_ms=timing.fence_after_ms)
        self._leases: dict[str, dict[str, LeaseBeat]] = {name: {} for name in self.names}
        self._reported: set[tuple[str, int, str]] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            for name in self.names:
                tasks.create_task(self._live(name))

    async def _live(self, name: str) -> None:
        await asyncio.sleep(random.random() * self._pace.beat_ms / 1000)
        sequence = last_seq = 0
        while name not in self.dead:
            beat = Heartbeat(
                account=self._account,
                node=name,
                incarnation="i1",
                sequence=sequence + 1,
                leases=tuple(self._leases[name].values()),
                fence_after_ms=self._pace.fence_after_ms,
            )
            try:
                async with asyncio.timeout(ACKNOWLEDGED_SECONDS_MAX):
                    subject = heartbeats(self._account, name)
                    last_seq = await self._bus.publish(subject, encode(beat), expected_seq=last_seq)
                sequence += 1
                self.acknowledged += 1
                if sequence == 1:
                    await self._offer(name)
            except SequenceConflict:
                last = await self._bus.last(HEARTBEATS.name, heartbeats(self._account, name))
                last_seq, sequence = (last.seq, sequence + 1) if last else (0, sequence)
            except (BusUnavailable, TimeoutError):
                pass
            await asyncio.sleep(self._pace.beat_ms * random.uniform(JITTER_MIN, 1) / 1000)

    async def _offer(self, name: str) -> None:
        bid = PlaceBid(
            account=self._account,
            node=name,
            request_id=f"bid-{name}",
            gpus=(Gpu(uuid=f"{name}-gpu", model="h100-80gb", memory_mib=80_000),),
            terms=Terms(ask_microusd_per_gpu_hour=ASK_MICROUSD),
        )
        await self._bus.publish(command_bid(self._account, name), encode(bid), message_id=bid.request_id)

    async def _follow(self) -> None:
        decoder: Decoder[Desired | Pace] = Decoder(Desired, Pace, bytes_max=DESIRED.message_bytes_max)
        async for batch in self._bus.read(DESIRED.name, [desired(self._account, "*"), DESIRED_FLEET]):
            for record in batch.records:
                told = decoder.decode(record.data)
                if isinstance(told, Pace):
                    self._pace = told
                elif told.node not in self.dead:
                    for lease in told.leases:
                        await self._obey(told.node, lease)

    async def _obey(self, name: str, lease: DesiredLease) -> None:
        key = (lease.lease, lease.generation, lease.phase)
        if key in self._reported:
            return
        self._reported.add(key)
        who = Whose(account=self._account, node=name, lease=lease.lease, generation=lease.generation)
        beats = self._leases[name]
        report: Report
        match lease.phase:
            case "prepare":
                report = ReportPrepared(**who, address=f"{name}.local", port=PORT)
            case "start":
                beats[lease.lease] = LeaseBeat(lease=lease.lease, generation=lease.generation, state="running")
                report = ReportStarted(**who)
            case "halt":
                beats.pop(lease.lease, None)
                report = ReportEnded(**who, exits=())
            case "stop":
                beats.pop(lease.lease, None)
                report = ReportCleared(**who)
        await self._bus.publish(command_report(self._account, name), encode(report))


async def main(url: str, account: str, nodes: str, profile: str) -> None:
    """Runs them until stdin ends."""
    timing = {str(name): one for name, one in PROFILES.items()}[profile]
    bus = await NatsBus.connect(url, f"agents-{account}")
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    agents = Agents(bus, account, int(nodes), timing)
    running = asyncio.create_task(agents.run())
    async for line in lines:
        match line.decode().split():
            case ["die", *names]:
                agents.dead.update(names)
            case _:
                print(agents.acknowledged, flush=True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
