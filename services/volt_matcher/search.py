"""Local search: some give up what they have, others take it, and whoever gave up looks for something else.

First every change that could lead to a noticeably better plan is tried, those that lose least against the bound first,
until none helps. What is left of a small contest is searched exactly. Then changes are made that look random; each
stays if the gains are no less. Their choices follow a fixed sequence of numbers, so the same contest always gives the
same plan; and moves are bounded in number, never in time.
"""

from volt_matcher.exact import solve
from volt_matcher.moves import Move
from volt_matcher.prices import Candidate, Priced

LOOSENED_MAX = 5
NOISE_PERCENT = 30
MOVES_PER_EPOCH = 80
PRICE_PERCENTS = (100, 50, 0, 150)
"""At which share of the shadow prices lots are picked, epoch by epoch: no one price is right for all gangs."""
TURNS_MAX = 3
"""How often both kinds of moves take turns."""
STALLED_MOVES_MIN = 20
STALLED_MOVES_PER_PERMILLE = 4
STALLED_MOVES_MAX = 100
"""How many moves in vain end the search: the more, the further the plan is below the bound."""


class Sequence:
    """Numbers that look random and are always the same (a linear congruential sequence, Knuth's MMIX constants)."""

    def __init__(self) -> None:
        self._state = 1

    def below(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % bound

    def noise(self, gains: int) -> int:
        return gains * self.below(NOISE_PERCENT) // 100


def improve(priced: Priced, moves_max: int) -> None:
    """Moves from the best plan on, until it is good enough, or so many moves were made, or too many in vain."""
    if priced.gains >= priced.enough:
        return
    able = [number for number, gains in enumerate(priced.alone) if gains > 0]
    moves_left, sequence = _systematic(priced, able, moves_max), Sequence()
    if priced.gains >= priced.enough or solve(priced):
        return
    for _ in range(TURNS_MAX):
        before = priced.gains
        moves_left = _at_random(priced, able, moves_left, sequence)
        if priced.gains in (before, priced.bound):
            break
        moves_left = _systematic(priced, able, moves_left)


def _systematic(priced: Priced, able: list[int], moves_left: int) -> int:
    """Tries candidates in turn until none of them helps. Says how many moves are left."""
    contest, candidates = priced.contest, priced.candidates()
    priced.renumber(100)
    contest.load(priced.plan)
    at = in_vain = 0
    while in_vain < len(candidates) and moves_left > 0 and contest.gains < priced.enough:
        candidate = candidates[at % len(candidates)]
        at += 1
        in_vain += 1
        if _is_so(priced, candidate):
            continue
        moves_left -= 1
        if _try(priced, able, candidate):
            in_vain = 0
    priced.keep()
    return moves_left


def _is_so(priced: Priced, candidate: Candidate) -> bool:
    """Whether the plan does it already, with the best lots that there are for it."""
    contest, (number, choice, regret) = priced.contest, candidate
    taken = contest.taken[number]
    if taken is None or choice is None:
        return taken is None and choice is None
    return taken[1] == choice and contest.priced(taken) >= priced.surplus[number] - regret


def _try(priced: Priced, able: list[int], candidate: Candidate) -> bool:
    """Makes a move if it is for the better."""
    contest, (number, choice, _) = priced.contest, candidate
    move = Move(contest)
    is_made = True
    if choice is not None:
        is_made = move.force(number, choice)
    else:
        _without(move, able, number)
    if is_made:
        _fill(move, able, priced, None, number if choice is None else None)
    if not is_made or contest.gains <= move.gains_before:
        move.undo()
        return False
    return True


def _without(move: Move, able: list[int], number: int) -> None:
    """Somebody has nothing any more, and the others take what is cheaper than what they have."""
    contest = move.contest
    freed = contest.held[number]
    move.evict(number)
    for other in able:
        taken, held = contest.taken[other], contest.held[other]
        if taken is None:
            continue
        cheaper = freed & contest.reach(taken[1]) & contest.available[taken[1].gpus]
        if cheaper and cheaper & -cheaper < held:
            move.evict(other)
            freed |= held
            found = contest.best(other, contest.available)
            assert found is not None, "what it had is free"
            move.put(other, found)


def _at_random(priced: Priced, able: list[int], moves_left: int, sequence: Sequence) -> int:
    """Makes moves until too many were in vain. Says how many are left."""
    contest = priced.contest
    gap_permille = 1000 * (priced.bound - priced.gains) // priced.bound
    stalled_max = min(STALLED_MOVES_MAX, STALLED_MOVES_MIN + STALLED_MOVES_PER_PERMILLE * gap_permille)
    stalled, plan = 0, priced.plan
    for at in range(moves_left):
        if contest.gains >= priced.enough or stalled >= stalled_max:
            break
        moves_left -= 1
        if at % MOVES_PER_EPOCH == 0:
            priced.renumber(PRICE_PERCENTS[at // MOVES_PER_EPOCH % len(PRICE_PERCENTS)])
            contest.load(plan)
        move = Move(contest, sequence.noise)
        served = [number for number in able if contest.taken[number] is not None]
        if not served:
            break
        waiting = [number for number in able if contest.taken[number] is None]
        kind = sequence.below(6)
        if kind < 4:
            _push(move, waiting if waiting and kind < 2 else served, sequence)
        else:
            _loosen(move, served, sequence)
        _fill(move, able, priced, sequence, None)
        stalled = 0 if contest.gains > move.gains_before else stalled + 1
        if contest.gains < move.gains_before:
            move.undo()
        plan = list(contest.taken)
    priced.keep()
    return moves_left


def _push(move: Move, those: list[int], sequence: Sequence) -> None:
    """One of those gets a place at others' expense."""
    number = those[sequence.below(len(those))]
    choices = move.contest.choices[number]
    move.force(
        number, choices[min(sequence.below(len(choices)), sequence.below(len(choices)))]
    )  # Cheap ones more often.


def _loosen(move: Move, served: list[int], sequence: Sequence) -> None:
    """Evicts some who are neighbours, and one or two from anywhere."""
    contest = move.contest
    taken = contest.taken[served[sequence.below(len(served))]]
    assert taken is not None, "those who are served have something"
    beside = contest.beside(taken[2][sequence.below(len(taken[2]))])
    near = [tenant for tenant, held in enumerate(contest.held) if held & beside]
    for _ in range(2 + sequence.below(LOOSENED_MAX - 1)):
        if near:
            move.evict(near.pop(sequence.below(len(near))))
    for _ in range(1 + sequence.below(2)):
        other = served[sequence.below(len(served))]
        if contest.taken[other] is not None:
            move.evict(other)


def _fill(move: Move, able: list[int], priced: Priced, sequence: Sequence | None, last: int | None) -> None:
    """Places whoever fits, by what each is worth per GPU, noise aside, and this one last."""
    contest, order = move.contest, list[tuple[int, int]]()
    for number in able:
        if contest.taken[number] is None and number != last:
            noise = sequence.noise(priced.alone[number]) if sequence is not None else 0
            order.append((-(priced.surplus[number] + noise) * 1000 // contest.size[number], number))
    order.sort()
    for number in [number for _, number in order] + ([last] if last is not None else []):
        found = contest.best(number, contest.available)
        if found is not None:
            move.put(number, found)
