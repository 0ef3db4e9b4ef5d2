"""The market judged by its log alone, by code that shares nothing with the matcher."""

from itertools import combinations

from msgspec import structs

from volt.contracts.bids import BidAccepted, BidWithdrawn, Gpu, Place
from volt.contracts.clusters import ClusterForming, LeaseCleared, MembersWanted
from volt.contracts.jobs import JobAdmitted, JobReleaseAccepted, JobSpec, Level
from volt.contracts.ledger import JobFunded, MembersFunded
from volt.contracts.log import Entry
from volt.contracts.market import Gang, MarketCleared
from volt.contracts.messages import Event
from volt.contracts.nodes import NodeAlive, NodeLost


class Auditor:
    """Follows the log, and asserts of every gang that it was right to grant it.

    What a pass knew is the log up to its `through_seq`, so supply is judged as of then; what is leased, as of now.
    """

    def __init__(self) -> None:
        self.bids: dict[str, BidAccepted] = {}
        self.alive: set[str] = set()
        self.specs: dict[str, JobSpec] = {}
        self.caps: dict[str, int] = {}
        self.ended: set[str] = set()
        self.vacancies: dict[tuple[str, int, int], tuple[int, frozenset[str]]] = {}
        self.latest: dict[tuple[str, int], tuple[int, int]] = {}
        """The generation and attempt that each rank is wanted for."""
        self.funded: set[tuple[str, int, int]] = set()
        self.held: dict[str, tuple[str, str, frozenset[str]]] = {}
        self.gangs: dict[str, list[Gang]] = {}
        self.places: dict[str, list[Place]] = {}
        self._supply: dict[int, tuple[dict[str, BidAccepted], set[str]]] = {}

    def follow(self, entry: Entry) -> None:
        """Takes in one event."""
        match entry.event:
            case BidAccepted(node=node) as bid:
                self.bids[node] = bid
            case BidWithdrawn(node=node):
                self.bids.pop(node, None)
            case NodeAlive(node=node):
                self.alive.add(node)
            case NodeLost(node=node):
                self.alive.discard(node)
            case LeaseCleared(lease=lease):
                self.held.pop(lease, None)
            case MarketCleared() as cleared:
                for gang in cleared.gangs:
                    if gang.job not in self.ended:
                        self._judge(gang, *self._supply[cleared.through_seq])
            case other:
                self._follow_job(other)
        self._supply[entry.seq] = (dict(self.bids), set(self.alive))

    def _follow_job(self, event: Event) -> None:
        match event:
            case JobAdmitted(job=job, spec=spec):
                self.specs[job] = spec
            case JobFunded(job=job, cap_microusd_per_gpu_hour=cap_microusd):
                self.caps[job] = cap_microusd
            case MembersWanted(job=job, generation=generation):
                for wanted in event.wanted:
                    self.vacancies[job, generation, wanted.attempt] = (wanted.rank, frozenset(event.excluded))
                    self.latest[job, wanted.rank] = (generation, wanted.attempt)
            case ClusterForming(job=job, generation=generation):
                gone = [key for key, (wanted_in, _) in self.latest.items() if key[0] == job and wanted_in < generation]
                for key in gone:
                    del self.latest[key]
            case MembersFunded(job=job, generation=generation, attempts=attempts):
                self.funded.update((job, generation, attempt) for attempt in attempts)
            case JobReleaseAccepted(job=job):
                self.ended.add(job)
            case _:
                raise AssertionError(f"unexpected {event}")

    def _judge(self, gang: Gang, bids: dict[str, BidAccepted], alive: set[str]) -> None:
        spec, before = self.specs[gang.job], self.gangs.setdefault(gang.job, [])
        self._judge_shape(gang, before)
        asks_microusd = [bids[grant.node].terms.ask_microusd_per_gpu_hour for grant in gang.grants]
        assert gang.price_microusd_per_gpu_hour == max(asks_microusd) <= self.caps[gang.job]
        is_void = bool(before) and self.latest.get((gang.job, gang.grants[0].rank)) != (gang.generation, gang.attempt)
        models = set[str]()
        for grant in gang.grants:
            bid = bids[grant.node]
            gpus = {gpu.uuid: gpu for gpu in bid.gpus}
            taken = set().union(*(held for _, _, held in self.held.values()))
            assert grant.node in alive
            assert grant.provider == bid.account
            assert len(grant.gpus) == len(set(grant.gpus)) == spec.shapes[0].gpus_per_node
            assert taken.isdisjoint(grant.gpus), "a GPU is leased twice"
            assert all(suits(gpus[uuid], spec) for uuid in grant.gpus)
            models.update(gpus[uuid].model for uuid in grant.gpus)
            assert is_allowed(bid.place, spec)
            assert all((gang.job, grant.node) != (job, node) for job, node, _ in self.held.values())
            if not is_void:
                self.held[grant.lease] = (gang.job, grant.node, frozenset(grant.gpus))
        assert len(models) == 1, "a gang is of one model"
        before.append(gang)
        places = self.places.setdefault(gang.job, [])
        places += [bids[grant.node].place for grant in gang.grants]
        assert spec.shapes[0].nodes == 1 or are_together(places, spec.interconnect)

    def _judge_shape(self, gang: Gang, before: list[Gang]) -> None:
        """Whole, once, its leases numbered on and its ranks those that were vacant."""
        count = sum(len(one.grants) for one in before)
        numbers = [int(grant.lease.rpartition("-")[2]) for grant in gang.grants]
        assert numbers == list(range(count + 1, count + len(gang.grants) + 1))
        ranks = [grant.rank for grant in gang.grants]
        if not before:
            assert (gang.generation, ranks) == (1, list(range(self.specs[gang.job].shapes[0].nodes)))
            assert len({grant.node for grant in gang.grants}) == len(ranks)
            return
        key = (gang.job, gang.generation, gang.attempt)
        rank, excluded = self.vacancies[key]
        assert key in self.funded
        assert (ranks, gang.grants[0].node in excluded) == ([rank], False)
        assert gang.attempt not in {one.attempt for one in before}


def suits(gpu: Gpu, spec: JobSpec) -> bool:
    return gpu.model in spec.models and gpu.memory_mib >= spec.min_memory_mib


def is_allowed(place: Place, spec: JobSpec) -> bool:
    return (not spec.regions or place.region in spec.regions) and place.region not in spec.regions_denied


def are_together(places: list[Place], level: Level) -> bool:
    """Whether they are known to be in one domain of the level."""
    named = {
        "fabric": {(place.region, place.fabric) for place in places},
        "site": {(place.region, place.site) for place in places},
        "region": {(place.region, "-") for place in places},
        "any": {("-", "-")},
    }[level]
    return len(named) == 1 and all(all(names) for names in named)


def cheapest_price_microusd(bids: list[BidAccepted], spec: JobSpec, cap_microusd: int) -> int | None:
    """The price of the cheapest set of these bids, all free, that can serve a job, by trying every one."""
    found = []
    for model in spec.models:
        one = structs.replace(spec, models=(model,))
        able = [
            bid
            for bid in bids
            if sum(suits(gpu, one) for gpu in bid.gpus) >= spec.shapes[0].gpus_per_node
            and is_allowed(bid.place, spec)
            and bid.terms.ask_microusd_per_gpu_hour <= cap_microusd
        ]
        for chosen in combinations(able, spec.shapes[0].nodes):
            if spec.shapes[0].nodes == 1 or are_together([bid.place for bid in chosen], spec.interconnect):
                asks_microusd = [bid.terms.ask_microusd_per_gpu_hour for bid in chosen]
                found.append((sum(asks_microusd), max(asks_microusd)))
    return min(found)[1] if found else None
