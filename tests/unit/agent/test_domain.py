"""What an agent does next: it converges to what is desired, from whatever it has."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from volt.contracts.clusters import BeatId
from volt.contracts.jobs import Workload
from volt.contracts.nodes import DesiredLease, Phase, Thaw
from volt_agent.domain import Finished, Frozen, Local, Nothing, Prepared, Running, Step, beat_of, next_step, unreported

ME = "incarnation-1"
BEAT = BeatId(incarnation=ME, sequence=7)
GENERATIONS = st.integers(1, 4)
LOCALS: st.SearchStrategy[Local] = st.one_of(
    st.just(Nothing()),
    st.builds(Prepared, GENERATIONS, st.just("127.0.0.1"), st.just(29500), st.just(BEAT), st.booleans()),
    st.builds(Running, GENERATIONS, st.booleans()),
    st.builds(Frozen, GENERATIONS, st.integers(0, 3), st.booleans(), st.booleans()),
    st.builds(Finished, GENERATIONS, reported=st.booleans()),
)
PHASES: st.SearchStrategy[Phase] = st.sampled_from(get_args(Phase))
STEPS_MAX = 12


def desired(phase: Phase, generation: int = 1) -> DesiredLease:
    return DesiredLease(
        lease="job-1",
        job="job",
        account="buyer",
        generation=generation,
        phase=phase,
        node_rank=0,
        gpus=("GPU-0",),
        processes=1,
        workload=Workload(command=("true",)),
        grace_ms=1000,
    )


@pytest.mark.parametrize(
    ("local", "phase", "step"),
    [
        (Nothing(), "prepare", Step.PREPARE),
        (Nothing(), "start", Step.REPORT_GONE),
        (Nothing(), "halt", Step.REPORT_GONE),
        (Nothing(), "stop", Step.CLEAR),
        (Nothing(reported=True), "stop", Step.WAIT),
        (Prepared(1, "a", 1, BEAT), "prepare", Step.REPORT_PREPARED),
        (Prepared(1, "a", 1, BEAT, reported=True), "prepare", Step.WAIT),
        (Prepared(1, "a", 1, BEAT, reported=True), "start", Step.START),
        (Prepared(1, "a", 1, BEAT), "halt", Step.CANCEL),
        (Prepared(1, "a", 1, BEAT), "stop", Step.DISCARD),
        (Running(1), "start", Step.REPORT_STARTED),
        (Running(1, reported=True), "start", Step.WAIT),
        (Running(1, reported=True), "halt", Step.END),
        (Running(1, reported=True), "stop", Step.END),
        (Frozen(1, 0, is_started=True), "start", Step.WAIT),
        (Frozen(1, 2, is_started=True), "start", Step.REPORT_FROZEN),
        (Frozen(1, 2, is_started=True, reported=True), "start", Step.WAIT),
        (Frozen(1, 2, is_started=True, reported=True), "halt", Step.END),
        (Frozen(1, 0, is_started=True), "stop", Step.END),
        (Finished(1), "start", Step.REPORT_FINISHED),
        (Finished(1, reported=True), "start", Step.WAIT),
        (Finished(1, reported=True), "stop", Step.DISCARD),
    ],
)
def test_each_state_and_phase_has_its_step(local: Local, phase: Phase, step: Step) -> None:
    assert next_step(local, desired(phase), ME) is step


@pytest.mark.parametrize(
    "local", [Prepared(1, "a", 1, BEAT, reported=True), Running(1, reported=True), Frozen(1, 1, is_started=True)]
)
def test_a_newer_generation_ends_the_older_one_first(local: Local) -> None:
    assert next_step(local, desired("prepare", 2), ME) in (Step.CANCEL, Step.END)


@given(LOCALS, PHASES)
def test_an_older_desire_is_never_acted_on(local: Local, phase: Phase) -> None:
    generation = getattr(local, "generation", 0)
    if generation > 1:
        assert next_step(local, desired(phase, generation - 1), ME) is Step.WAIT


@given(LOCALS, PHASES, GENERATIONS)
def test_whatever_it_has_an_agent_comes_to_rest_at_what_is_desired(local: Local, phase: Phase, above: int) -> None:
    wanted = desired(phase, getattr(local, "generation", 0) + above)
    taken: list[Step] = []
    while (step := next_step(local, wanted, ME)) is not Step.WAIT:
        taken.append(step)
        local = after(step, local, wanted)
        assert len(taken) <= STEPS_MAX, taken
    assert (Step.CLEAR in taken) == (phase == "stop")
    assert (local == Nothing(reported=True)) == (phase == "stop")
    assert Step.START not in taken or phase == "start"


@given(LOCALS)
def test_what_nobody_asks_for_is_ended_and_forgotten(local: Local) -> None:
    wanted = desired("stop", getattr(local, "generation", 1))
    taken: list[Step] = []
    while (step := next_step(local, wanted, ME, is_listed=False)) is not Step.FORGET:
        taken.append(step)
        local = after(step, local, wanted)
        assert len(taken) <= STEPS_MAX, taken
    assert Step.WAIT not in taken
    assert isinstance(local, Nothing)


@given(LOCALS, PHASES)
def test_a_report_is_made_again_once_its_state_is_taken_for_unreported(local: Local, phase: Phase) -> None:
    wanted = desired(phase, getattr(local, "generation", 1))
    can_be_told = not isinstance(local, Frozen) or local.freeze > 0
    if next_step(local, wanted, ME) is Step.WAIT and can_be_told:
        assert next_step(unreported(local), wanted, ME).value.startswith(("report", "clear"))


def test_what_is_prepared_is_started_only_when_start_is_desired() -> None:
    prepared = Prepared(1, "a", 1, BEAT, reported=True)
    assert [next_step(prepared, changed(desired("prepare"), phase=phase), ME) for phase in ("prepare", "start")] == [
        Step.WAIT,
        Step.START,
    ]


@given(LOCALS)
def test_a_beat_says_running_only_of_what_runs(local: Local) -> None:
    beat = beat_of("job-1", local)
    assert (beat is not None and beat.state == "running") == isinstance(local, Running)


@pytest.mark.parametrize(
    ("thaw", "step"),
    [
        (Thaw(incarnation=ME, freeze=2), Step.THAW),
        (Thaw(incarnation=ME, freeze=1), Step.REPORT_FROZEN),
        (Thaw(incarnation=ME, freeze=3), Step.REPORT_FROZEN),
        (Thaw(incarnation="incarnation-0", freeze=2), Step.REPORT_FROZEN),
    ],
)
def test_only_leave_for_its_very_freeze_lets_a_lease_go_on(thaw: Thaw, step: Step) -> None:
    assert next_step(Frozen(1, 2, is_started=True), changed(desired("start"), thaw=thaw), ME) is step


@given(PHASES.filter(lambda phase: phase != "start"), st.integers(0, 2))
def test_leave_to_go_on_counts_for_nothing_once_something_else_is_desired(phase: Phase, freeze: int) -> None:
    wanted = changed(desired(phase), thaw=Thaw(incarnation=ME, freeze=freeze))
    assert next_step(Frozen(1, freeze, is_started=True), wanted, ME) is not Step.THAW


def test_a_freeze_that_no_beat_has_told_of_is_not_thawed() -> None:
    wanted = changed(desired("start"), thaw=Thaw(incarnation=ME, freeze=0))
    assert next_step(Frozen(1, 0, is_started=True), wanted, ME) is Step.WAIT


def after(step: Step, local: Local, wanted: DesiredLease) -> Local:
    """What a step makes of the local state when all goes well."""
    generation = getattr(local, "generation", wanted.generation)
    match step:
        case Step.PREPARE:
            return Prepared(wanted.generation, "127.0.0.1", 29500, BEAT)
        case Step.REPORT_PREPARED:
            return Prepared(generation, "127.0.0.1", 29500, BEAT, reported=True)
        case Step.START:
            return Running(generation)
        case Step.REPORT_STARTED:
            return Running(generation, reported=True)
        case Step.REPORT_FROZEN:
            assert isinstance(local, Frozen)
            return replace(local, reported=True)
        case Step.CANCEL | Step.END:
            return Finished(generation)
        case Step.REPORT_GONE:
            return Finished(wanted.generation)
        case Step.REPORT_FINISHED:
            return Finished(generation, reported=True)
        case Step.CLEAR:
            return Nothing(reported=True)
        case _:
            return Nothing()


def test_what_is_over_is_not_beaten_as_running_while_its_output_waits_for_the_bus() -> None:
    beat = beat_of("job-1", Running(1, is_over=True))
    assert beat is not None
    assert beat.state == "ended"
