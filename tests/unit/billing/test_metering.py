"""What is billable: sets of milliseconds, and money that is rounded once."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.billing.builders import DOLLAR, HOUR
from volt.contracts.ledger import BillLine
from volt_billing.metering import billable_ms, common, due_microusd, fee_microusd, joined, length_ms, windows, within
from volt_billing.states import NEVER_MS, Lease, Ready, Running, Spans, Terms

stretches = st.tuples(st.integers(0, 30), st.integers(0, 30))
sets_of_stretches = st.lists(stretches, max_size=8)


def spans_of(pieces: list[tuple[int, int]]) -> Spans:
    spans: Spans = ()
    for from_ms, to_ms in pieces:
        spans = joined(spans, from_ms, to_ms)
    return spans


def instants(spans: Spans | list[tuple[int, int]]) -> set[int]:
    return {instant for from_ms, to_ms in spans for instant in range(from_ms, to_ms)}


@given(sets_of_stretches)
def test_a_union_has_every_instant_once_in_order_and_apart(pieces: list[tuple[int, int]]) -> None:
    spans = spans_of(pieces)
    assert instants(spans) == instants(pieces)
    assert length_ms(spans) == len(instants(pieces))
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(set(edges))


@given(sets_of_stretches, sets_of_stretches)
def test_an_intersection_has_the_instants_that_both_have(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    shared = common(spans_of(some), spans_of(others))
    assert instants(shared) == instants(some) & instants(others)
    assert shared == spans_of(list(shared))


@given(sets_of_stretches, stretches)
def test_a_cut_keeps_the_instants_within_it(pieces: list[tuple[int, int]], window: tuple[int, int]) -> None:
    assert instants(within(spans_of(pieces), *window)) == instants(pieces) & set(range(*window))


def lease(name: str, lost_ms: int = NEVER_MS) -> Lease:
    line = BillLine(
        lease=name,
        provider="p",
        gpus=1,
        price_microusd_per_gpu_hour=DOLLAR,
        through_ms=0,
        billable_ms=0,
        due_microusd=0,
        fee_microusd=0,
    )
    return Lease(line, lost_ms)


def job(*, is_gang: bool, ready: dict[int, Ready], leases: dict[str, Lease]) -> Running:
    terms = Terms("buyer", ("h100",), len(leases), is_gang, None, NEVER_MS)
    return Running(terms, DOLLAR, 0, 0, leases=leases, ready=ready)


@given(
    st.booleans(),
    st.dictionaries(
        st.integers(1, 3),
        st.tuples(
            st.integers(0, 20),
            st.integers(0, 30),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 30)),
        ),
    ),
    st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(0, 30), st.just(NEVER_MS)), min_size=1),
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), sets_of_stretches),
    st.integers(0, 30),
)
def test_billable_is_what_the_rule_says_instant_by_instant(
    is_gang: bool,
    generations: dict[int, tuple[int, int, dict[str, int]]],
    lost: dict[str, int],
    cover: dict[tuple[str, int], list[tuple[int, int]]],
    until_ms: int,
) -> None:
    party = frozenset(lost)
    ready = {number: Ready(party, at, exited, end) for number, (at, end, exited) in generations.items()}
    running = job(is_gang=is_gang, ready=ready, leases={name: lease(name, at) for name, at in lost.items()})

    def covers(name: str, number: int, instant: int) -> bool:
        return instant in instants(cover.get((name, number), [])) and instant < lost[name]

    def is_billable(name: str, instant: int) -> bool:
        for number, (ready_ms, end_ms, exited) in generations.items():
            in_time = ready_ms <= instant < min(end_ms, until_ms)
            own = covers(name, number, instant) and instant < exited.get(name, NEVER_MS)
            others = all(covers(one, number, instant) or instant >= exited.get(one, NEVER_MS) for one in party)
            if in_time and own and (others or not is_gang):
                return True
        return False

    by_lease: dict[str, dict[int, Spans]] = {}
    for (name, number), pieces in cover.items():
        by_lease.setdefault(name, {})[number] = spans_of(pieces)
    assert billable_ms(running, by_lease, until_ms) == {
        name: sum(is_billable(name, instant) for instant in range(31)) for name in lost
    }


def test_a_window_ends_at_whatever_comes_first() -> None:
    ready = {1: Ready(frozenset("abcd"), 10, {"b": 25}, 40)}
    leases = {"a": lease("a"), "b": lease("b"), "c": lease("c", 20), "d": lease("d", 5)}
    running = job(is_gang=False, ready=ready, leases=leases)
    ends = {window.lease: window.to_ms for window in windows(running, 30)}
    assert ends == {"a": 30, "b": 25, "c": 20}


@given(st.lists(st.integers(0, HOUR), max_size=20), st.integers(1, 16), st.integers(1, 50 * DOLLAR))
def test_what_is_posted_piece_by_piece_is_what_is_due_at_once(pieces: list[int], gpus: int, price: int) -> None:
    posted = paid = through_ms = 0
    for piece_ms in pieces:
        through_ms += piece_ms
        due = due_microusd(through_ms, gpus, price)
        posted += due - posted
        paid += (due - fee_microusd(due)) - paid
    assert posted == sum(pieces) * gpus * price // HOUR
    assert paid == posted - fee_microusd(posted)


def test_a_rate_of_four_tenths_a_unit_is_paid_in_full_over_time() -> None:
    rate = 400
    """Micro-dollars per hour: 0.4 in each 3.6 seconds."""
    dues = [due_microusd(units * 3_600, 1, rate) for units in range(11)]
    assert dues == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4]
