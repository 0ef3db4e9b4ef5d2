"""Whatever the order in which agents, market, monitor, buyer and time act, the log keeps its rules."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.unit.provisioner.agents import Local, checkpoint_of, report_of, step
from tests.unit.provisioner.rules import check, every_loss_is_answered
from tests.unit.provisioner.world import JOB, TICK_MS, TIMING, World, admitted, gang, grant, provider_of, spec
from volt.contracts.clusters import ClusterEvent, Exit, MembersWanted
from volt.contracts.jobs import OnLoss, Recovery
from volt.contracts.messages import Event
from volt.contracts.nodes import (
    NodeAlive,
    Report,
    ReportCheckpoint,
    ReportCleared,
    ReportEnded,
    ReportFailed,
    ReportPrepared,
    ReportStarted,
)
from volt_provisioner.domain import State, evolve
from volt_provisioner.states import Cleared, Running

RANKS = 2
NODES_MAX = 4
NODES = [f"n{number}" for number in range(8)]
HAPPENINGS = ["loss", "loss", "grant", "grant", "scale", "scale", "drain", "drain", "release", "exhaustion"]
REPORTS: list[type[Report]] = [
    ReportPrepared,
    ReportStarted,
    ReportFailed,
    ReportEnded,
    ReportCheckpoint,
    ReportCleared,
]
CALM_ROUNDS = 5
STEPS_TO_CLEAR_MAX = 8

nodes = st.sampled_from(NODES)
exits = st.one_of(
    st.just((Exit(local_rank=0, code=0),)),
    st.just((Exit(local_rank=0, code=1),)),
    st.just((Exit(local_rank=0, signal=9),)),
    st.just(()),
)


class Interleavings(RuleBasedStateMachine):
    """Events are written one by one, by anybody; the provisioner's own may be late, behind what it could not know."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(spec(RANKS))
        self.local: dict[str, Local] = {}
        self.leases: dict[str, str] = {}
        self.answered: set[int] = set()

    # The provisioner.

    @rule()
    def follow(self) -> None:
        self.world.follow()

    @rule()
    def follow_once(self) -> None:
        for event in self.world.due():
            self.world.write(event)

    @rule(what=st.sampled_from(HAPPENINGS), node=nodes)
    def follow_late(self, what: str, node: str) -> None:
        """The provisioner appends what it decided on a state that does not know this yet."""
        late = self.world.due()
        self._write(self._foreign(what, node))
        for event in late:
            self.world.write(event)

    # Others.

    @initialize(
        progress=st.sampled_from(["granted", "forming", "running", "running", "growing", "joining", "grown"]),
        on_loss=st.sampled_from(["replace", "replace", "shrink", "stop"]),
        retries=st.sampled_from([0, 0, 2]),
    )
    def begin(self, progress: str, on_loss: OnLoss, retries: int) -> None:
        """Every log begins with a gang; most of them get further before anything goes wrong."""
        self.world.write(admitted(wanted=spec(RANKS, recovery=Recovery(on_loss=on_loss, retries=retries))))
        self._write(self.world.first_gang())
        if progress != "granted":
            self.world.follow()
        if progress in ("running", "growing", "joining", "grown"):
            self.calm()
        if progress in ("growing", "joining", "grown"):
            self.scale(NODES_MAX, is_followed=True)
        if progress == "joining":
            self._write(self._grant("n7"))
            self._write(self._grant("n6"))
        if progress == "grown":
            self.calm()
            self.calm()

    @rule(node=nodes)
    def answer(self, node: str) -> None:
        self._write(self._foreign("grant", node))

    @rule(node=nodes)
    def lose(self, node: str) -> None:
        self._write(self.world.lost(node))

    @rule(node=nodes, gpu=st.integers(0, 1))
    def quarantine(self, node: str, gpu: int) -> None:
        self._write(self.world.quarantined(node, f"{node}-{gpu}"))

    @rule(node=nodes)
    def recover(self, node: str) -> None:
        self._write(self.world.recovered(node, f"{node}-0", f"{node}-1"))

    @rule(node=nodes)
    def revive(self, node: str) -> None:
        self.world.write(NodeAlive(account=provider_of(node), node=node, incarnation="i", at_ms=self.world.now_ms))

    @rule(nodes=st.integers(1, NODES_MAX), is_followed=st.booleans())
    def scale(self, nodes: int, is_followed: bool) -> None:
        """The buyer wishes for another size, or for the same again."""
        self._write(self.world.scale_accepted(nodes))
        if is_followed:
            self.world.follow()

    @rule(node=nodes, seconds=st.sampled_from([0, 5, 600]), is_resumed=st.booleans())
    def drain(self, node: str, seconds: int, is_resumed: bool) -> None:
        """The provider wants the node back, or has changed its mind."""
        self._write(self.world.resume_accepted(node) if is_resumed else self.world.drain_accepted(node, seconds))

    @rule(is_release=st.booleans(), doubt=st.integers(0, 5))
    def end(self, is_release: bool, doubt: int) -> None:
        if doubt == 0:
            self._write(self._foreign("release" if is_release else "exhaustion", ""))

    @rule(ms=st.sampled_from([1, 1, 5_000, 5_000, TIMING.prepare_ms_max + 1, TIMING.replace_ms_max + 1]))
    def wait(self, ms: int) -> None:
        """Time goes by before the provisioner does anything about it."""
        for _ in range(ms // TICK_MS):
            self.world.now_ms += TICK_MS
            self.world.due()
        self.world.now_ms += ms % TICK_MS

    @rule(node=nodes, is_followed=st.booleans())
    def behave(self, node: str, is_followed: bool) -> None:
        """A node's agent takes one step to what is desired of it, for each of its leases."""
        self._behave(node)
        if is_followed:
            self.world.follow()

    @rule()
    def calm(self) -> None:
        """Nothing goes wrong for a while: vacancies are filled and agents converge."""
        for _ in range(CALM_ROUNDS):
            self.world.follow()
            for node in NODES:
                self._behave(node)
            self._write(self._grant(next((node for node in NODES if not self._is_used(node)), NODES[0])))

    @rule(
        data=st.data(),
        kind=st.sampled_from(
            [ReportPrepared, ReportStarted, ReportFailed, ReportEnded, ReportCheckpoint, ReportCleared]
        ),
        ended=exits,
    )
    def say_anything(self, data: st.DataObject, kind: type[Report], ended: tuple[Exit, ...]) -> None:
        """A report out of turn, of any lease and generation."""
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        generation = data.draw(st.integers(1, self.world.generation + 1))
        self.world.record(report_of(kind, self.leases[lease], lease, generation, ended))

    @rule(step=st.integers(0, 5), who=st.sampled_from([NODES, NODES, NODES[:1], NODES[1:]]), is_followed=st.booleans())
    def store(self, step: int, who: list[str], is_followed: bool) -> None:
        """All that run, or some of them, have stored a step; some store it for the second time."""
        for lease, local in self.local.items():
            if local.state == "running" and self.leases[lease] in who:
                self.world.record(checkpoint_of(self.leases[lease], lease, local.generation, step))
        if is_followed:
            self.world.follow()

    @rule(is_followed=st.booleans())
    def fail_to_join(self, is_followed: bool) -> None:
        """Whoever prepares for a generation that has not formed cannot."""
        for node in NODES:
            if (provider_of(node), node) in self.world.state.nodes:
                for lease in self.world.desired(node).leases:
                    if lease.phase == "prepare" and lease.generation > self.world.generation:
                        self.world.record(report_of(ReportFailed, node, lease.lease, lease.generation, ()))
                        self.local.pop(lease.lease, None)
        if is_followed:
            self.world.follow()

    @rule(ended=exits, is_followed=st.booleans())
    def finish(self, ended: tuple[Exit, ...], is_followed: bool) -> None:
        """Everything that runs ends in the same way."""
        for lease, local in self.local.items():
            if local.state == "running":
                self.local[lease] = Local(local.generation, "ended")
                self.world.record(report_of(ReportEnded, self.leases[lease], lease, local.generation, ended))
                if is_followed:
                    self.world.follow()

    # What must be so.

    def teardown(self) -> None:
        """At rest every loss is answered. Once it is released every node stops, and then nothing is left."""
        world = self.world
        world.follow()
        every_loss_is_answered(world.all(ClusterEvent))
        world.release()
        for node in NODES:
            if (provider_of(node), node) in world.state.nodes:
                assert {phase for phase, _ in world.phases(node)} <= {"stop"}
        for _ in range(STEPS_TO_CLEAR_MAX):
            for node in NODES:
                self._behave(node)
        assert world.state.clusters[JOB] == Cleared()
        assert not world.state.leases
        assert not world.state.agenda
        assert all(not node.leases for node in world.state.nodes.values())
        check(world.log, TIMING)
        self._the_log_alone_makes_the_state()

    def _the_log_alone_makes_the_state(self) -> None:
        again = State(TIMING)
        for entry in self.world.log:
            evolve(again, entry)
        again.watch = self.world.state.watch
        assert again == self.world.state

    def _foreign(self, what: str, node: str) -> Event:
        match what:
            case "loss":
                return self.world.lost(node)
            case "release":
                return self.world.release_accepted()
            case "exhaustion":
                return self.world.funds_exhausted()
            case "drain":
                return self.world.drain_accepted(node, 0)
            case "scale":
                return self.world.scale_accepted(1 + NODES.index(node) % NODES_MAX)
            case _:
                return self._grant(node)

    def _grant(self, node: str) -> Event:
        """The market's answer to the oldest open attempt; an empty pass if there is none or the node is in use."""
        for event in self.world.all(MembersWanted):
            for wanted in event.wanted:
                if wanted.attempt not in self.answered and node not in event.excluded:
                    self.answered.add(wanted.attempt)
                    number = RANKS + wanted.attempt
                    return self.world.cleared(
                        gang(grant(number, wanted.rank, node), generation=event.generation, attempt=wanted.attempt)
                    )
        return self.world.cleared()

    def _is_used(self, node: str) -> bool:
        known = self.world.state.nodes.get((provider_of(node), node))
        return known is not None and (known.lost or bool(known.leases))

    def _write(self, event: Event) -> None:
        self.world.write(event)
        for one in getattr(event, "gangs", ()):
            self.leases |= {grant.lease: grant.node for grant in one.grants}

    def _behave(self, node: str) -> None:
        if (provider_of(node), node) not in self.world.state.nodes:
            return
        for desired in self.world.desired(node).leases:
            kind, generation, then = step(self.local.get(desired.lease), desired)
            if kind is not None:
                self.world.record(report_of(kind, node, desired.lease, generation, (Exit(local_rank=0, signal=15),)))
            if then is None:
                self.local.pop(desired.lease, None)
            else:
                self.local[desired.lease] = then


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, NODES_MAX), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_last_wish_is_reached_when_nothing_goes_wrong(wishes: list[tuple[int, int]]) -> None:
    """However far the ones before it had got."""
    run = Interleavings()
    run.begin("running", "replace", 0)
    for wanted, steps in wishes:
        run.scale(wanted, is_followed=False)
        for _ in range(steps):
            run.follow()
            for node in NODES:
                run.behave(node, is_followed=True)
                run.answer(node)
    for _ in range(CALM_ROUNDS):
        run.calm()
    cluster = run.world.state.clusters[JOB]
    assert isinstance(cluster, Running)
    assert len(cluster.crew.members) == wishes[-1][0]
    assert not cluster.growth.members
    run.teardown()
