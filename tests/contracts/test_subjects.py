"""Every message has its place, and no two streams want the same one."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.strategies import IDS, messages
from volt.contracts import streams, subjects
from volt.contracts.log import EVENT_TYPES
from volt.contracts.messages import Event
from volt.contracts.streams import ALL, LOG, STORED_BYTES_MAX
from volt.runtime.subjects import matches

LOG_FILTERS = (
    subjects.ALL_ACCOUNTS,
    subjects.ALL_JOBS,
    subjects.ALL_BIDS,
    subjects.ALL_CLUSTERS,
    subjects.ALL_NODES,
    subjects.LOG_MARKET,
    subjects.LOG_COVER,
    subjects.LOG_FLEET,
    subjects.LOG_LEDGER,
)
COMMAND_FILTERS = (
    subjects.ACCOUNT_COMMANDS,
    subjects.JOB_COMMANDS,
    subjects.BID_COMMANDS,
    subjects.REPORTS,
)
TEMPLATES = {
    "log.account.{account}",
    "log.job.{account}.{job}",
    "log.bid.{account}.{bid}",
    "log.market",
    "log.cluster.{account}.{cluster}",
    "log.node.{account}.{node}",
    "log.cover",
    "log.fleet",
    "log.ledger",
    "cmd.{account}.account",
    "cmd.{account}.job",
    "cmd.{account}.bid.{node}",
    "cmd.{account}.report.{node}",
    "desired.{account}.{node}",
    "desired.fleet",
    "heartbeats.{account}.{node}",
    "heartbeats.monitor",
    "logs.{account}.{job}.{node}",
    "dead.>",
}
TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.tuples(st.lists(TOKENS, min_size=1, max_size=3), st.booleans()).map(
    lambda parts: ".".join([*parts[0], *([">"] if parts[1] else [])])
)


def owners(subject: str) -> list[str]:
    """The streams that take a subject."""
    return [spec.name for spec in ALL if any(matches(subject, one) for one in spec.subjects)]


def overlap(one: str, other: str) -> bool:
    """Whether some subject is let through by both filters."""
    left, right = one.split("."), other.split(".")
    for mine, yours in itertools.zip_longest(left, right):
        if ">" in (mine, yours):
            return mine is not None and yours is not None
        if mine is None or yours is None or (mine != yours and "*" not in (mine, yours)):
            return False
    return True


def every_subject(account: str, node: str, job: str) -> list[tuple[str, str]]:
    """One subject of each kind and the stream that it belongs to."""
    commands = [
        subjects.command_account(account),
        subjects.command_job(account),
        subjects.command_bid(account, node),
        subjects.command_report(account, node),
    ]
    events = [
        subjects.log_account(account),
        subjects.log_job(account, job),
        subjects.log_bid(account, node),
        subjects.LOG_MARKET,
        subjects.log_cluster(account, job),
        subjects.log_node(account, node),
        subjects.LOG_COVER,
        subjects.LOG_FLEET,
        subjects.LOG_LEDGER,
    ]
    return [
        *((subject, "LOG") for subject in events),
        *((subject, "COMMANDS") for subject in commands),
        *((subjects.dead_letter(subject), "DEAD_LETTERS") for subject in [*commands, *events]),
        (subjects.desired(account, node), "DESIRED"),
        (subjects.DESIRED_FLEET, "DESIRED"),
        (subjects.heartbeats(account, node), "HEARTBEATS"),
        (subjects.MONITOR_PROBE, "HEARTBEATS"),
        (subjects.logs(account, job, node), "LOGS"),
    ]


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
def test_an_event_belongs_to_the_log_and_to_one_kind_of_aggregate(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(messages(kind))
    subject = event.subject()
    assert owners(subject) == [LOG.name]
    assert sum(matches(subject, one) for one in LOG_FILTERS) == 1
    assert subjects.template(subject) in TEMPLATES


@given(account=IDS, node=IDS, job=IDS)
def test_a_subject_belongs_to_one_stream(account: str, node: str, job: str) -> None:
    for subject, stream in every_subject(account, node, job):
        assert owners(subject) == [stream]


def test_no_two_streams_and_no_two_filters_overlap() -> None:
    taken = [pattern for spec in ALL for pattern in spec.subjects]
    for patterns in (taken, LOG_FILTERS, COMMAND_FILTERS):
        assert not [pair for pair in itertools.combinations(patterns, 2) if overlap(*pair)]


@given(one=PATTERNS, other=PATTERNS, subject=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4))
def test_overlap_is_seen_wherever_a_subject_shows_it(one: str, other: str, subject: list[str]) -> None:
    name = ".".join(subject)
    if matches(name, one) and matches(name, other):
        assert overlap(one, other)
        assert overlap(other, one)


@given(account=IDS, node=IDS, job=IDS)
def test_a_template_has_no_id_and_there_are_few_of_them(account: str, node: str, job: str) -> None:
    assert {subjects.template(subject) for subject, _ in every_subject(account, node, job)} == TEMPLATES


@given(account=IDS, node=IDS)
def test_a_command_speaks_for_the_sender_that_its_subject_names(account: str, node: str) -> None:
    assert subjects.sender(subjects.command_account(account)) == (account, "")
    assert subjects.sender(subjects.command_job(account)) == (account, "")
    assert subjects.sender(subjects.command_bid(account, node)) == (account, node)
    assert subjects.sender(subjects.command_report(account, node)) == (account, node)
    for subject in (subjects.command_bid(account, node), subjects.command_report(account, node)):
        assert sum(matches(subject, one) for one in COMMAND_FILTERS) == 1


@given(account=IDS, other=IDS, node=IDS, job=IDS)
def test_an_accounts_filters_show_its_own_events_and_no_others(account: str, other: str, node: str, job: str) -> None:
    def shown(subject: str) -> int:
        return sum(matches(subject, one) for one in subjects.account_events(account))

    mine = [subject for subject, stream in every_subject(account, node, job) if stream == "LOG"]
    shared = {subjects.LOG_MARKET, subjects.LOG_COVER, subjects.LOG_FLEET, subjects.LOG_LEDGER}
    assert [shown(subject) for subject in mine] == [0 if subject in shared else 1 for subject in mine]
    if other != account:
        assert not any(shown(subject) for subject, _ in every_subject(other, node, job))
    assert not overlap(*subjects.account_events(account)), "a consumer takes no filters that overlap"


@given(account=IDS, job=IDS, node=IDS)
def test_the_output_of_a_job_is_that_of_its_nodes(account: str, job: str, node: str) -> None:
    pattern = subjects.job_logs(account, job)
    assert matches(subjects.logs(account, job, node), pattern)
    assert not matches(subjects.logs(account, job + "x", node), pattern)


def test_streams_are_bounded_and_have_names_of_their_own() -> None:
    assert len({spec.name for spec in ALL}) == len(ALL)
    for spec in ALL:
        assert spec.bytes_max > 0
        assert spec.message_bytes_max > 0
        assert spec.age_seconds_max or spec.messages_per_subject_max == 1 or spec is LOG


def test_nothing_is_dropped_from_the_log_and_it_is_synced() -> None:
    assert LOG.discard == "new"
    assert LOG.age_seconds_max == 0
    assert {spec.name for spec in ALL if spec.persist_async} == {"HEARTBEATS", "LOGS"}


def test_a_dead_letter_has_room_for_the_largest_message() -> None:
    base64_bytes = -(-STORED_BYTES_MAX // 3) * 4
    assert streams.DEAD_LETTERS.message_bytes_max > base64_bytes + 64 * 1024
