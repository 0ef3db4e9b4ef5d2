"""Whatever happens on a day in the market: both audits find nothing, and at its end all is given back.

The matcher, the provisioner and billing decide by one log, each by itself; so what is void for one of them and not for
another, or granted by one and refused by another for ever (nomad#25808), would show here.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.simulation.house import BUYER, MODEL, RIVAL, House, admitted, lost, released
from volt.audit.ledger import audit
from volt.audit.market import audit_market
from volt.contracts.clusters import ClusterReleased, MemberLost, MembersWanted
from volt.contracts.jobs import JobSpec, Shape, Workload
from volt.contracts.ledger import hold

NODES = ("n1", "n2", "n3", "n4")
ANY = JobSpec(
    models=(MODEL,),
    shapes=(Shape(nodes=1, gpus_per_node=1),),
    workload=Workload(kind="ddp", command=("train",)),
    interconnect="fabric",
)
numbers = st.integers(0, 7)
specs = st.builds(
    lambda shape, lasts, waits: replace(
        ANY,
        shapes=(Shape(nodes=shape[0], gpus_per_node=shape[1]),),
        max_duration_seconds=lasts,
        max_wait_seconds=waits,
    ),
    st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)]),
    st.sampled_from([None, None, 30, 120]),
    st.sampled_from([None, None, None, 0, 60]),
)
happenings = st.one_of(
    st.tuples(st.sampled_from(["ask", "ask", "ask and release", "ask and lose"]), specs),
    st.tuples(st.sampled_from(["release", "complete", "fail", "lose", "return", "silence", "offer"]), numbers),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 70, 700])),
)


class Day(House):
    """A house, and the jobs that were asked for in it."""

    def __init__(self) -> None:
        super().__init__(*NODES)
        self.jobs: list[str] = []

    def happen(self, what: str, how: JobSpec | int) -> None:
        if isinstance(how, JobSpec):
            self._request(how, what.removeprefix("ask").removeprefix(" and "))
            return
        node, job = NODES[how % len(NODES)], self.jobs[how % len(self.jobs)] if self.jobs else None
        match what:
            case "wait":
                self.passes(how)
            case "lose":
                self.lose(node)
            case "return" if node in self.away:
                self.come_back(node)
            case "silence":
                self.away.add(node)
            case "offer":
                self.offer(node)
                self.settle()
            case "release" if job is not None:
                self.release(job)
            case "complete" | "fail" if job is not None:
                self.exits(job, 0 if what == "complete" else 1)
            case _:
                pass

    def _request(self, spec: JobSpec, meanwhile: str) -> None:
        """A job comes. If something happens meanwhile, then while what the market says of it is on its way."""
        job, account = f"j{len(self.jobs)}", RIVAL if len(self.jobs) % 2 else BUYER
        self.jobs.append(job)
        self.buyers[job] = account
        if not meanwhile:
            self.ask(job, spec, account)
            return
        self.write(admitted(job, spec, account, self.now_ms))
        self.write(*self.billing.due(self.now_ms)[:1])
        on_its_way = self.matcher.due(self.now_ms)
        if meanwhile == "release":
            self.write(released(job, account, self.now_ms))
        elif NODES[0] not in self.away:
            self.away.add(NODES[0])
            self.write(lost(NODES[0], self.now_ms))
        self.write(*on_its_way)
        self.settle()

    def ends(self) -> None:
        """Everybody comes back, every job is released, and all that runs is over."""
        self.come_back(*list(self.away))
        for job in self.jobs:
            self.release(job)
        self.covered()


@given(st.lists(happenings, min_size=5, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_in_a_day_no_audit_finds_anything_and_all_is_given_back(
    day: list[tuple[str, JobSpec | int]],
) -> None:
    house = Day()
    for what, how in day:
        house.happen(what, how)
    house.ends()
    assert audit_market(house.entries).findings == ()
    assert audit_market(house.entries).held == 0
    report = audit(house.entries)
    assert report.findings == ()
    assert {job.stage for job in report.jobs} <= {"closed", "unfunded"}
    assert all(house.balance_microusd(hold(job)) == 0 for job in house.jobs)
    assert house.matcher.state.leases == {}
    assert all(house.told(node) == [] for node in NODES)
    _every_loss_is_answered_once(house)


def _every_loss_is_answered_once(house: House) -> None:
    replaced = [one.replaces for event in house.all(MembersWanted) for one in event.wanted if one.replaces]
    lost = [event.lease for event in house.all(MemberLost)]
    over = {event.job for event in house.all(ClusterReleased)}
    unanswered = [lease for lease in lost if lease not in replaced and lease.rpartition("-")[0] not in over]
    assert (len(replaced), unanswered) == (len(set(replaced)), [])
