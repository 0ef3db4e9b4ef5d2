"""A cluster is made larger or smaller on the command line, which says what it comes to."""

import msgspec
import pytest

from tests.unit.cli.conftest import Volt
from tests.unit.sdk.scripted import Step, answer, events
from volt.contracts.http import Job, JobHappening, JobMember, JobState

END = b"event: end\ndata: {}\n\n"
BEFORE = [(3, "JobScaleAccepted", "to be scaled to 9 nodes"), (4, "ClusterReady", "ready; an earlier size")]
ACCEPTED = (9, "JobScaleAccepted", "to be scaled to 2 nodes")
GRANTED = (10, "MarketCleared", "granted 8 GPUs on n2")
READY = (14, "ClusterReady", "ready; it is billed from here")


def job(nodes: int, wanted: int | None = 2, state: JobState = "ready") -> Job:
    members = tuple(
        JobMember(
            lease=f"j1-{number}",
            rank=number,
            node=f"n{number}",
            provider="lab",
            gpus=("a", "b"),
            price_usd_per_gpu_hour="2.000000",
            state="started",
        )
        for number in range(nodes)
    )
    return Job(id="j1", request_id="r", state=state, members=members, nodes_wanted=wanted)


def story(*happenings: tuple[int, str, str]) -> Step:
    told = [JobHappening(seq=seq, at_ms=1, event=event, message=message) for seq, event, message in happenings]
    return events(
        *(b"event: happening\nid: %d\ndata: %s\n\n" % (one.seq, msgspec.json.encode(one)) for one in told), END
    )


def test_scaling_waits_until_the_cluster_has_that_size(volt: Volt) -> None:
    history = story(*BEFORE, ACCEPTED)
    going = story(*BEFORE, ACCEPTED, GRANTED, READY)
    answers = (answer(job(1)), history, going, answer(job(1)), answer(job(2)))
    code, out, err, bodies = volt("scale", "j1", "--count", "16", answers=answers)
    assert (code, out) == (0, "")
    assert bytes(bodies[0]) == b'{"count":16}'
    assert "granted 8 GPUs on n2" in err
    assert "earlier size" not in err


def test_a_cluster_that_has_that_size_is_not_waited_for(volt: Volt) -> None:
    answers = (answer(job(2)), story(ACCEPTED), story(ACCEPTED), answer(job(2)))
    code, out, _, _ = volt("scale", "j1", "--count", "16", "--json", answers=answers)
    assert code == 0
    assert msgspec.json.decode(out, type=Job) == job(2)


def test_whoever_does_not_wait_is_told_how_to_look(volt: Volt) -> None:
    code, _, err, bodies = volt("scale", "j1", "--count", "16", "--detach", answers=(answer(job(1)),))
    assert code == 0
    assert "16 GPUs" in err
    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("after", "words"),
    [(job(1, wanted=None), "it stays as it is"), (job(1, state="released"), "released")],
    ids=["failed", "ended"],
)
def test_a_cluster_that_does_not_get_that_size_is_a_failure(after: Job, words: str, volt: Volt) -> None:
    given_up = (12, "GrowthGivenUp", "gives up growing by ranks 1: failed")
    answers = (answer(job(1)), story(ACCEPTED), story(ACCEPTED, given_up), answer(job(1)), *[answer(after)] * 2)
    code, _, err, _ = volt("scale", "j1", "--count", "16", answers=answers)
    assert code == 1
    assert f"not scaled: {words}" in err
