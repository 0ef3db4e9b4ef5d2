"""A change of a plan that can be undone: somebody gets lots, and others give way.

Who is on a lot that is wanted goes to another lot of its own choice, if that costs less than it gains above the shadow
prices; or it gives up everything, and then looks for something else, if need be at the expense of others yet.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from volt_matcher.contest import NEVER, Choice, Contest, Taken

CASCADE_MAX = 3
"""How many force their way in one after the other."""
OCCUPIED_LOTS_MAX = 64
"""Among how many lots of others one looks, apart from as many as it needs nodes."""
UPSET_PERCENT = 2
"""What giving up everything counts at least, as a share of what is gained by it now."""

Noise = Callable[[int], int]
"""What to add to such gains, so that not the same give way every time."""


def silence(_: int) -> int:
    """No noise."""
    return 0


class _Freeing(NamedTuple):
    """What it costs to free a lot: who leaves it, and for which other; None is for nothing."""

    cost: int
    leaving: list[tuple[int, int | None]]


class _Tenant(NamedTuple):
    """Somebody who may have to leave a lot: what giving up everything costs, and what other lots it could take."""

    number: int
    holds: int
    gpus: int
    factor: int
    upset: int
    elsewhere: int


class Move:
    """What was given up and taken."""

    def __init__(self, contest: Contest, noise: Noise = silence) -> None:
        self.contest = contest
        self.gains_before = contest.gains
        self.given_up: dict[int, Taken] = {}
        self._noise = noise
        self._placed: dict[int, None] = {}

    def evict(self, number: int) -> Taken:
        """Takes everything from somebody."""
        taken = self.contest.remove(number)
        if number in self._placed:
            del self._placed[number]
        else:
            self.given_up[number] = taken
        return taken

    def put(self, number: int, taken: Taken) -> None:
        """Gives it to somebody who has nothing."""
        self.contest.put(number, taken)
        self._placed[number] = None

    def undo(self) -> None:
        """Everything is as it was."""
        for number in self._placed:
            self.contest.remove(number)
        for number, taken in self.given_up.items():
            self.contest.put(number, taken)

    def force(self, number: int, choice: Choice) -> bool:
        """Serves somebody in this way whatever it takes; then the one who gains most of those who lost by that."""
        pinned = {number}
        if not self._take(number, choice, pinned, NEVER):
            return False
        for _ in range(CASCADE_MAX - 1):
            loser = self._loser(pinned)
            if loser is None:
                break
            pinned.add(loser)
            for other in self.contest.choices[loser]:
                if other.domain != choice.domain or other.domain < 0:
                    self._take(loser, other, pinned, self.contest.limit[loser] - other.least)
                    choice = other
                    break
        return True

    def _loser(self, pinned: set[int]) -> int | None:
        """Places the losers again, who gains most first; the first for whom nothing is left."""
        contest, found = self.contest, None
        losers = [one for one in self.given_up if contest.taken[one] is None and one not in pinned]
        for loser in sorted(losers, key=lambda one: (-self.given_up[one][0], one)):
            taken = contest.best(loser, contest.available)
            if taken is not None:
                self.put(loser, taken)
            elif found is None:
                found = loser
        return found

    def _take(self, number: int, choice: Choice, pinned: set[int], worth: int) -> bool:
        """Gives somebody the lots that are cheapest with what it costs to free them, unless others lose more by it."""
        contest, nodes, gpus = self.contest, choice.nodes, choice.gpus
        if contest.taken[number] is not None:
            self.evict(number)
        keep, heap = self._wanted(choice)
        own, tries = {lot: cost for cost, lot in heap}, nodes
        tenants, lots = self._tenants(own, pinned), list[int]()
        while heap and len(lots) < nodes:
            before, lot = heappop(heap)
            if contest.free[lot] < gpus:
                freeing = self._freeing(lot, gpus, tenants, keep)
                if freeing is None:
                    continue
                cost = own[lot] + freeing.cost
                if cost > before and heap and cost > heap[0][0]:
                    heappush(heap, (cost, lot))
                    continue
                worth -= self._free(lot, freeing)
                if worth <= 0:
                    return False
                tenants = self._tenants(own, pinned)
                if contest.free[lot] < gpus:  # Two of those who left it wanted the same other lot.
                    tries -= 1
                    if tries:
                        heappush(heap, (cost, lot))
                    continue
            keep |= contest.bit[lot]
            lots.append(lot)
        if len(lots) < nodes:
            return False
        self.put(number, contest.taking(number, choice, tuple(lots)))
        return True

    def _wanted(self, choice: Choice) -> tuple[int, list[tuple[int, int]]]:
        """The cheapest lots that are free, as bits; and a heap of these and of those of others that are cheaper."""
        contest, gpus, nodes = self.contest, choice.gpus, choice.nodes
        available, reach = contest.available[gpus], contest.reach(choice)
        cheap = contest.first(available & reach, nodes)
        occupied = reach & contest.at_first[gpus] & ~available
        if len(cheap) == nodes:
            occupied &= contest.bit[cheap[-1]] - 1
        keep = sum([contest.bit[lot] for lot in cheap])
        lots = cheap + contest.first(occupied, nodes + OCCUPIED_LOTS_MAX)
        asks_microusd, prices, factor = contest.asks_microusd, contest.prices, choice.factor
        heap = [(gpus * (factor * asks_microusd[lot] + prices[lot]), lot) for lot in lots]
        heapify(heap)
        return keep, heap

    def _tenants(self, lots: Iterable[int], pinned: set[int]) -> list[_Tenant]:
        """Those who are on these lots and may be asked to leave."""
        contest, found = self.contest, list[_Tenant]()
        bits = sum([contest.bit[lot] for lot in lots])
        for number, holds in enumerate(contest.held):
            taken = contest.taken[number]
            if holds & bits and taken is not None and number not in pinned:
                gains, choice, _ = taken
                upset = max(0, contest.priced(taken)) + gains * UPSET_PERCENT // 100 + self._noise(gains)
                elsewhere = contest.available[choice.gpus] & contest.reach(choice) & ~holds
                found.append(_Tenant(number, holds, choice.gpus, choice.factor, upset, elsewhere))
        return found

    def _freeing(self, lot: int, gpus: int, tenants: list[_Tenant], keep: int) -> _Freeing | None:
        """How so many GPUs of a lot are freed at the least cost; lots to keep are for nobody else."""
        contest = self.contest
        bit, lacking = contest.bit[lot], gpus - contest.free[lot]
        asks_microusd, prices = contest.asks_microusd, contest.prices
        found = list[tuple[int, int, int, int | None]]()
        for number, holds, each, factor, cost, elsewhere in tenants:
            if not holds & bit:
                continue
            others, other = elsewhere & ~keep, None
            if others:
                target = contest.first(others, 1)[0]
                more = factor * (asks_microusd[target] - asks_microusd[lot]) + prices[target] - prices[lot]
                if each * more < cost:
                    cost, other = each * more, target
            found.append((cost, number, each, other))
        found.sort(key=lambda one: one[:2])
        total, leaving = 0, list[tuple[int, int | None]]()
        for cost, number, each, other in found:
            if lacking > 0:
                total += cost
                lacking -= each
                leaving.append((number, other))
        return _Freeing(total, leaving) if lacking <= 0 else None

    def _free(self, lot: int, freeing: _Freeing) -> int:
        """Lets tenants leave a lot, and says what they gained who gave up everything."""
        contest, lost = self.contest, 0
        for tenant, other in freeing.leaving:
            taken = contest.taken[tenant]
            if other is None:
                lost += self.evict(tenant)[0]
            elif taken is not None and contest.free[other] >= taken[1].gpus:
                self.evict(tenant)
                lots = tuple([other if one == lot else one for one in taken[2]])
                self.put(tenant, contest.taking(tenant, taken[1], lots))
        return lost
