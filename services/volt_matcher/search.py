"""Local search: some give up what they have, others take it, and whoever gave up looks for something else.

Each move is aimed at one who has nothing, or loosens a few neighbours; those who lost are placed again at shadow
prices, and the move stays if the gains are no less. Choices between equals are made by a fixed sequence of numbers, so
the same contest always gives the same plan; and the number of moves is bounded, never their time.
"""

from volt_matcher.contest import Contest, Taken
from volt_matcher.prices import Priced

EVICTED_MAX = 8
CHAIN_MAX = 3
LOOSENED_MAX = 5
NEWCOMERS_MAX = 12
NOISE_PERCENT = 60
MOVES_PER_EPOCH = 80
NOTICEABLE = 10_000
"""A move that makes less than this part of the bound more is no sign that there is more to find."""
PRICE_PERCENTS = (100, 50, 0, 150)
"""At which share of the shadow prices lots are picked, epoch by epoch: no one price is right for all gangs."""


class Sequence:
    """Numbers that look random and are always the same (a linear congruential sequence, Knuth's MMIX constants)."""

    def __init__(self) -> None:
        self._state = 1

    def below(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % bound


class _Move:
    """What was given up and taken, so that it can be undone."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.gains_before = contest.gains
        self.given_up: dict[int, Taken] = {}
        self.placed: list[int] = []

    def evict(self, number: int) -> None:
        self.given_up[number] = self.contest.remove(number)

    def put(self, number: int, taken: Taken) -> None:
        self.contest.put(number, taken)
        self.placed.append(number)

    def undo(self) -> None:
        for number in reversed(self.placed):
            self.contest.remove(number)
        for number, taken in self.given_up.items():
            self.contest.put(number, taken)


def improve(priced: Priced, moves_max: int, stalled_moves_max: int) -> None:
    """Moves from the best plan on, until the bound says that it is the best or so many moves were in vain."""
    contest, sequence = priced.contest, Sequence()
    able = [number for number, gains in enumerate(priced.alone) if gains > 0]
    stalled = 0
    for at in range(moves_max):
        if contest.gains >= priced.bound or stalled >= stalled_moves_max:
            break
        if at % MOVES_PER_EPOCH == 0:
            _begin_epoch(priced, at // MOVES_PER_EPOCH)
        waiting = [number for number in able if contest.taken[number] is None]
        served = [number for number in able if contest.taken[number] is not None]
        if not served:
            break
        move = _Move(contest)
        kind = sequence.below(6)
        if waiting and kind < 3:
            _chain(move, waiting[sequence.below(len(waiting))], sequence)
        elif kind < 5:
            _chain(move, served[sequence.below(len(served))], sequence)
        else:
            _loosen(move, served, sequence)
        _fill(move, waiting, priced, sequence)
        is_better = contest.gains > move.gains_before + priced.bound // NOTICEABLE
        stalled = 0 if is_better else stalled + 1
        if contest.gains < move.gains_before:
            move.undo()
    priced.keep()


def _begin_epoch(priced: Priced, number: int) -> None:
    contest = priced.contest
    plan = list(contest.taken) if number else priced.plan
    percent = PRICE_PERCENTS[number % len(PRICE_PERCENTS)]
    contest.renumber([price * percent // 100 for price in priced.prices])
    contest.load(plan)


def _chain(move: _Move, number: int, sequence: Sequence) -> None:
    """One gets a place at others' expense, and now and then one of those at yet others'."""
    pinned = set[int]()
    for _ in range(CHAIN_MAX):
        pinned.add(number)
        _make_room(move, number, sequence, pinned)
        losers = [one for one in move.given_up if move.contest.taken[one] is None and one not in pinned]
        if not losers or sequence.below(2):
            return
        number = losers[sequence.below(len(losers))]


def _make_room(move: _Move, number: int, sequence: Sequence, pinned: set[int]) -> None:
    """Evicts those who gain least, noise aside, from where it could be, until it can; and puts it there."""
    contest = move.contest
    choices = contest.choices[number]
    choice = choices[min(sequence.below(len(choices)), sequence.below(len(choices)))]  # Cheap ones more often.
    if contest.taken[number] is not None:
        move.evict(number)
    reach = contest.reach(choice)
    tenants = [tenant for tenant, held in enumerate(contest.held) if held & reach and tenant not in pinned]

    def worth(tenant: int) -> tuple[int, int]:
        taken = contest.taken[tenant]
        gains = contest.priced(taken) + taken[0] * sequence.below(NOISE_PERCENT) // 100 if taken is not None else 0
        return (gains * 1000 // contest.size[tenant], tenant)

    for tenant in sorted(tenants, key=worth)[:EVICTED_MAX]:
        if (contest.available[choice.gpus] & reach).bit_count() >= choice.nodes:
            break
        move.evict(tenant)
    found = contest.within(number, choice)
    if found is not None:
        move.put(number, found)


def _loosen(move: _Move, served: list[int], sequence: Sequence) -> None:
    """Evicts some who are neighbours, and one or two from anywhere."""
    contest = move.contest
    first = served[sequence.below(len(served))]
    taken = contest.taken[first]
    assert taken is not None
    lot = taken[2][sequence.below(len(taken[2]))]
    beside = contest.beside(lot)
    near = [tenant for tenant, held in enumerate(contest.held) if held & beside]
    for _ in range(2 + sequence.below(LOOSENED_MAX - 1)):
        if near:
            move.evict(near.pop(sequence.below(len(near))))
    for _ in range(1 + sequence.below(2)):
        other = served[sequence.below(len(served))]
        if contest.taken[other] is not None:
            move.evict(other)


def _fill(move: _Move, waiting: list[int], priced: Priced, sequence: Sequence) -> None:
    """Places those who lost something and some of those who wait, by what each is worth per GPU, noise aside."""
    contest = move.contest

    def order(number: int) -> tuple[int, int]:
        size, noise_percent = contest.size[number], sequence.below(NOISE_PERCENT)
        worth = priced.surplus[number] + priced.alone[number] * noise_percent // 100
        return (-worth * 1000 // size, number)

    newcomers = sorted([order(number) for number in waiting if contest.taken[number] is None])
    losers = [order(number) for number in move.given_up if contest.taken[number] is None]
    for _, number in sorted(losers + newcomers[:NEWCOMERS_MAX]):
        found = contest.best(number, contest.available)
        if found is not None:
            move.put(number, found)
