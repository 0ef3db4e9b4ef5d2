"""Random histories of a small market, in the order that a log can show them, with billing at work on all of it.

Others act at random but by their rules: the matcher grants what is funded, the provisioner forms, starts, loses, grows,
shrinks and releases, the monitor covers some of the time. Billing reads late, appends without having read the last
entries, and is restarted, at random. The watermark may be far behind, and money may run out.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from tests.unit.billing.builders import (
    DOLLAR,
    HOUR,
    MINUTE,
    SECOND,
    World,
    admitted,
    covered,
    dropped,
    ended,
    ended_to_grow,
    ended_to_shrink,
    forming,
    gang,
    generation_ended,
    given_up,
    joined,
    lost,
    opened,
    ready,
    release_accepted,
    released,
    started,
    wanted,
)
from volt.contracts.jobs import WorkloadKind
from volt.contracts.ledger import FundsExhausted, JobFunded, JobUnfunded, MembersFunded
from volt.contracts.messages import Event
from volt_billing.agenda import Agenda
from volt_billing.domain import evolve
from volt_billing.effects import effects
from volt_billing.looks import AT_ONCE
from volt_billing.states import State

KINDS: tuple[WorkloadKind, ...] = ("ddp", "batch", "service")
STEPS_MS = (1, 7, 500, 3 * SECOND, 20 * SECOND, 90 * SECOND, 20 * MINUTE, HOUR)
PRICES = (1, 37, 400_000, 2 * DOLLAR, 30 * DOLLAR)
GAP_MS = 2 * SECOND


@dataclass
class Cluster:
    """A job as its provisioner sees it."""

    job: str
    account: str
    cap: int
    nodes: int
    phase: str = "requested"
    generation: int = 1
    leases: list[str] = field(default_factory=list)
    granted: int = 0
    running: set[str] = field(default_factory=set)
    sought: set[int] = field(default_factory=set)
    """Attempts to grow that the market has not answered."""
    funded: set[int] = field(default_factory=set)
    joining: list[str] = field(default_factory=list)
    """Leases that are to join the next generation."""

    def lease(self) -> str:
        self.granted += 1
        return f"{self.job}-{self.granted}"


class History:
    """One run, by one source of chance."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.world = World()
        self.clusters: list[Cluster] = []
        self.covered_to_ms = self.world.now_ms
        self.seen_of_ledger = 0
        self.world.say(opened("ann"), opened("bob"))

    def run(self, steps: int) -> None:
        """So many random steps, and then an end of everything."""
        for _ in range(steps):
            self.world.now_ms += self.chance.choice(STEPS_MS)
            self._happen()
            self._bill()
        self._end()

    def _happen(self) -> None:
        if len(self.clusters) < 3 and self.chance.random() < 0.3:
            self._request()
        if self.chance.random() < 0.5:
            self._cover()
        if self.clusters:
            cluster = self.chance.choice(self.clusters)
            self._hear()
            if cluster.phase not in ("over", "requested") or self.chance.random() < 0.1:
                self.world.append(*self._next(cluster))

    def _bill(self) -> None:
        """Billing acts: at once, not at all, on what it had read before, or after forgetting everything."""
        how = self.chance.random()
        if how < 0.5:
            self.world.act()
            assert effects(looking_everywhere(self.world.state), self.world.now_ms) == ()
        elif how < 0.7:
            self.world.act_unread()
        elif how < 0.85:
            self.world.read()
            before = self.world.state
            self.world.restart()
            assert self.world.state == before

    def _request(self) -> None:
        account, nodes = self.chance.choice(["ann", "bob"]), self.chance.randint(1, 3)
        cap = self.chance.choice(PRICES)
        cluster = Cluster(f"job{len(self.clusters)}", account, cap, nodes)
        self.clusters.append(cluster)
        self.world.append(
            admitted(
                cluster.job,
                account=account,
                kind=self.chance.choice(KINDS),
                nodes=nodes,
                gpus_per_node=self.chance.randint(1, 2),
                cap=cap,
                max_seconds=self.chance.choice([None, 60, 5_400]),
                at_ms=self.world.now_ms,
            )
        )

    def _hear(self) -> None:
        """The others read the ledger."""
        by_job = {cluster.job: cluster for cluster in self.clusters}
        entries = self.world.entries
        for entry in entries[self.seen_of_ledger :]:
            match entry.event:
                case JobFunded(job=job) if by_job[job].phase == "requested":
                    by_job[job].phase = "funded"
                case JobUnfunded(job=job) | FundsExhausted(job=job):
                    by_job[job].phase = "over"
                case MembersFunded(job=job, attempts=attempts):
                    by_job[job].funded |= {*attempts}
        self.seen_of_ledger = len(entries)

    def _next(self, cluster: Cluster) -> list[Event]:
        """What comes next for a cluster; sometimes its end, in every state."""
        at_ms, who = self.world.now_ms, (cluster.job, cluster.account)
        if self.chance.random() < 0.08:
            cluster.phase = "over"
            ends: list[Event] = [release_accepted(at_ms - self.chance.choice([0, 0, 5, 3_000]), *who)]
            if cluster.generation and self.chance.random() < 0.5:
                ends.append(released(cluster.generation, at_ms=at_ms, job=who[0], account=who[1]))
            return ends
        match cluster.phase:
            case "funded":
                return self._grant(cluster)
            case "forming":
                return self._start(cluster)
            case "ready":
                return self._trouble(cluster)
            case _:
                return []

    def _grant(self, cluster: Cluster) -> list[Event]:
        cluster.leases = [cluster.lease() for _ in range(cluster.nodes)]
        cluster.phase = "forming"
        return [self._gang(cluster, cluster.leases), self._forming(cluster)]

    def _gang(self, cluster: Cluster, leases: list[str]) -> Event:
        return gang(
            *leases,
            price=self.chance.randint(1, cluster.cap),
            gpus=self.chance.randint(1, 2),
            job=cluster.job,
            account=cluster.account,
            generation=cluster.generation,
            provider=self.chance.choice([None, "p", cluster.account]),
            at_ms=self.world.now_ms,
        )

    def _forming(self, cluster: Cluster) -> Event:
        return forming(
            cluster.generation, *cluster.leases, at_ms=self.world.now_ms, job=cluster.job, account=cluster.account
        )

    def _start(self, cluster: Cluster) -> list[Event]:
        at_ms, job, account, number = self.world.now_ms, cluster.job, cluster.account, cluster.generation
        cluster.phase, cluster.running = "ready", set(cluster.leases)
        events: list[Event] = [
            started(number, lease, at_ms=at_ms, job=job, account=account) for lease in cluster.leases
        ]
        if self.chance.random() < 0.2:
            events.append(self._exit(cluster, 0))
        return [*events, ready(number, at_ms=at_ms, job=job, account=account)]

    def _trouble(self, cluster: Cluster) -> list[Event]:
        """Nothing, an exit, or a loss that is answered by a new generation with one more lease."""
        at_ms, job, account, number = self.world.now_ms, cluster.job, cluster.account, cluster.generation
        what = self.chance.random()
        if what < 0.25 or not cluster.running:
            return []
        if what < 0.65:
            return self._size(cluster)
        if what < 0.8:
            return [self._exit(cluster, self.chance.choice([0, 0, 0, None]))]
        gone, new = self.chance.choice(sorted(cluster.running)), cluster.lease()
        events: list[Event] = [
            lost(number, gone, at_ms=at_ms, job=job, account=account),
            generation_ended(number, gone, at_ms=at_ms + self.chance.choice([0, 3]), job=job, account=account),
            *self._next_generation(cluster, {gone}),
            wanted(cluster.generation, cluster.generation, at_ms=at_ms, job=job, account=account),
            self._gang(cluster, [new]),
            joined(cluster.generation, new, at_ms=at_ms, job=job, account=account),
        ]
        cluster.leases.append(new)
        return events

    def _size(self, cluster: Cluster) -> list[Event]:
        """One step to another size; or away from it, or two at once."""
        number, at_ms = cluster.generation, self.world.now_ms
        job, account = cluster.job, cluster.account
        granted = sorted(cluster.sought & cluster.funded)
        what = self.chance.choice(["ask", "grant", "grant", "drop", "give up", "grow", "grow", "shrink"])
        if what == "grant" and granted:
            new = cluster.lease()
            events: list[Event] = [self._gang(cluster, [new])]
            cluster.sought.remove(granted[0])
            cluster.joining.append(new)
            return [*events, joined(number + 1, new, at_ms=at_ms, job=job, account=account)]
        if what == "drop" and cluster.joining:
            return [dropped(number + 1, cluster.joining.pop(), at_ms=at_ms, job=job, account=account)]
        if what == "give up":
            return self._give_up(cluster)
        if what == "grow" and cluster.joining:
            return [
                ended_to_grow(number, at_ms=at_ms, job=job, account=account),
                *self._next_generation(cluster, set()),
            ]
        if what == "shrink" and len(cluster.leases) > 1:
            leaver = cluster.leases[-1]
            return [
                *self._give_up(cluster),
                ended_to_shrink(number, leaver, at_ms=at_ms, job=job, account=account),
                *self._next_generation(cluster, {leaver}),
            ]
        attempt = 1_000 + len(self.world.entries)
        cluster.sought.add(attempt)
        return [wanted(number, attempt, at_ms=at_ms, job=job, account=account, replaces=None)]

    def _give_up(self, cluster: Cluster) -> list[Event]:
        leases, attempts = cluster.joining, tuple(sorted(cluster.sought))
        cluster.joining = []
        if self.chance.random() < 0.5:
            cluster.sought = set()  # Or else the market answers late.
        return [
            given_up(
                cluster.generation,
                *leases,
                attempts=attempts,
                at_ms=self.world.now_ms,
                job=cluster.job,
                account=cluster.account,
            )
        ]

    def _next_generation(self, cluster: Cluster, gone: set[str]) -> list[Event]:
        """Forms with those who are left and most of those who were to join; a gang for the one before comes late."""
        late = [self._gang(cluster, [cluster.lease()])] if cluster.sought and self.chance.random() < 0.3 else []
        joining = [lease for lease in cluster.joining if self.chance.random() < 0.7]
        cluster.leases = [lease for lease in cluster.leases if lease not in gone] + joining
        cluster.joining, cluster.sought = [], set()
        cluster.generation += 1
        cluster.phase = "forming"
        return [self._forming(cluster), *late]

    def _exit(self, cluster: Cluster, code: int | None) -> Event:
        lease = self.chance.choice(sorted(cluster.running))
        if code == 0:
            cluster.running.discard(lease)
        return ended(cluster.generation, lease, code, at_ms=self.world.now_ms, job=cluster.job, account=cluster.account)

    def _cover(self) -> None:
        """The monitor tells what it has found up to a little ago: much of the time, in pieces, some of it twice."""
        from_ms, to_ms = self.covered_to_ms, self.world.now_ms
        spans = []
        for cluster in self.clusters:
            for lease in cluster.leases:
                cuts = sorted(self.chance.randint(from_ms, to_ms) for _ in range(self.chance.choice([0, 1, 4])))
                edges = [from_ms, *cuts, to_ms]
                pieces = list(pairwise(edges))
                kept = [piece for piece in pieces if self.chance.random() < 0.8]
                number = self.chance.choice([cluster.generation, cluster.generation, 1])
                spans += [(lease, number, *piece) for piece in kept + kept[:1]]
        complete_to_ms = max(from_ms, to_ms - self.chance.choice([0, GAP_MS]))
        self.world.append(covered(*spans, complete_to_ms=complete_to_ms, at_ms=to_ms))
        self.covered_to_ms = complete_to_ms

    def _end(self) -> None:
        """Everything is released, and cover becomes complete."""
        for cluster in self.clusters:
            self.world.now_ms += 1
            self.world.append(release_accepted(self.world.now_ms, cluster.job, cluster.account))
        self.world.now_ms += MINUTE
        self.world.append(covered(complete_to_ms=self.world.now_ms))
        self.world.act()


def looking_everywhere(state: State) -> State:
    """The same state, but that billing looks at every open job, whatever its agenda says."""
    agenda = Agenda()
    for job, number in state.open_jobs.items():
        agenda.put(job, number, AT_ONCE)
    return replace(state, agenda=agenda)


def refolded(history: History) -> State:
    """What a billing that starts now makes of the log."""
    state = State()
    for entry in history.world.entries:
        evolve(state, entry)
    return state
