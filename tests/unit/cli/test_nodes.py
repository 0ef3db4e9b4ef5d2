"""What a provider sees of their own nodes on the command line, and how one is emptied."""

import msgspec

from tests.unit.cli.conftest import Volt
from tests.unit.sdk.scripted import answer
from volt.contracts.http_market import DrainRequest, NodeList, ProviderNode

NODE = ProviderNode(
    node="n1",
    state="alive",
    gpus=8,
    leased=4,
    leases=("j1-2",),
    withdrawn=False,
    drain_by_ms=1_800_000_000_000,
    drain_reason="new disks",
)


def test_a_drain_says_why_and_by_when(volt: Volt) -> None:
    words = ("--reason", "new disks", "--deadline", "10m")
    code, out, err, bodies = volt("node", "drain", "n1", *words, answers=(answer(NodeList(nodes=(NODE,))),))
    assert code == 0
    assert msgspec.json.decode(bodies[0], type=DrainRequest) == DrainRequest(reason="new disks", deadline="10m")
    assert "(new disks)" in out
    assert "by 20" in out
    assert "volt node resume n1" in err


def test_a_drained_node_without_leases_is_empty(volt: Volt) -> None:
    empty = msgspec.structs.replace(NODE, leased=0, leases=())
    _, out, _, _ = volt("node", "list", answers=(answer(NodeList(nodes=(empty,))),))
    assert "empty (new disks)" in out


def test_the_list_is_json_when_asked_for_and_no_nodes_are_no_failure(volt: Volt) -> None:
    code, out, _, _ = volt("node", "list", "--json", answers=(answer(NodeList(nodes=(NODE,))),))
    assert code == 0
    assert msgspec.json.decode(out, type=list[ProviderNode]) == [NODE]
    code, out, err, _ = volt("node", "resume", "n1", answers=(answer(NodeList(nodes=())),))
    assert (code, out) == (0, "")
    assert "no nodes" in err
