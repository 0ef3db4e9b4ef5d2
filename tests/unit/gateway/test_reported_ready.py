"""A job is shown as ready only when its whole cluster is (runpodctl#317)."""

from tests.unit.gateway import story
from tests.unit.gateway.story import JOB, Cluster, Projected
from volt.contracts.messages import Event
from volt_gateway.entities import Job, job_doc

CLUSTER = Cluster(1)
BEFORE_READY: list[Event] = [
    story.cleared(story.gang("n1", "n2")),
    story.forming(story.member("n1", 1, 0), story.member("n2", 2, 1)),
    CLUSTER.prepared(1),
    CLUSTER.prepared(2),
    CLUSTER.started(1),
    CLUSTER.started(2),
]


def job(shown: Projected) -> Job:
    found = shown.views.documents[job_doc(JOB)]
    assert isinstance(found, Job)
    return found


def test_nothing_before_the_whole_cluster_is_ready_makes_a_job_ready() -> None:
    shown = Projected().tell(story.account_opened(), story.admitted(), story.funded())
    for event in BEFORE_READY:
        shown.tell(event)
        assert job(shown).state == "preparing", event
        assert job(shown).ready_at_ms is None
    shown.tell(CLUSTER.ready())
    assert job(shown).state == "ready"
