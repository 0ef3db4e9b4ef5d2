"""What the monitor says of nodes, in the views: presence, failed GPUs, and what counts for and against them."""

from collections.abc import MutableMapping

from msgspec.structs import replace

from volt.contracts.http_market import (
    MISHAPS_MAX,
)
from volt.contracts.nodes import (
    GpuFaulted,
    GpuQuarantined,
    NodeAlive,
    NodeEvent,
    NodeLost,
    NodeQuarantined,
    NodeRated,
    NodeUnknown,
    QuarantineEnded,
)
from volt.contracts.reliability import (
    change_of,
    changed,
    mishap_of,
)
from volt_gateway.entities import (
    History,
    Node,
    PastMishap,
    Presence,
    Quarantined,
    Stored,
    history_doc,
)


def seen(before: Presence | None, event: NodeEvent) -> Presence:
    """The node as it is known after an event. Raises AssertionError for one that says nothing of it."""
    presence = before or Presence(state="unknown")
    match event:
        case NodeAlive(reliability_permille=permille):
            return replace(presence, state="alive", reliability_permille=permille, lost_by=None)
        case NodeUnknown():
            return replace(presence, state="unknown")
        case NodeLost(cause=cause):
            return replace(presence, state="lost", lost_by=cause)
        case NodeRated(reliability_permille=permille) | GpuFaulted(reliability_permille=permille):
            return replace(presence, reliability_permille=permille)
        case GpuQuarantined() | NodeQuarantined():
            closes_node = isinstance(event, NodeQuarantined)
            new = tuple(
                Quarantined(gpu=gpu, why=event.fault.words(), since_ms=event.at_ms, closes_node=closes_node)
                for gpu in event.gpus
            )
            known = tuple(one for one in presence.quarantined if one.gpu not in event.gpus)
            return replace(presence, reliability_permille=event.reliability_permille, quarantined=(*known, *new))
        case QuarantineEnded(gpus=gpus):
            return replace(presence, quarantined=tuple(one for one in presence.quarantined if one.gpu not in gpus))
        case _:
            raise AssertionError(f"no state of a node in {type(event).__name__}")


def remember(documents: MutableMapping[str, Stored], event: NodeEvent) -> None:
    """The histories of the node and its provider, with one more event."""
    of_node, of_provider = history_doc(event.account, event.node), history_doc(event.account)
    node, provider = history_of(documents.get(of_node)), history_of(documents.get(of_provider))
    change = change_of(node.record, event)
    kind = mishap_of(event)
    fault = event.fault.words() if isinstance(event, GpuFaulted | GpuQuarantined | NodeQuarantined) else ""
    new = () if kind is None else (PastMishap(kind=kind, at_ms=event.at_ms, what=fault),)
    documents[of_node] = History(
        record=changed(node.record, change, event.at_ms), mishaps=(*node.mishaps, *new)[-MISHAPS_MAX:]
    )
    documents[of_provider] = replace(provider, record=changed(provider.record, change, event.at_ms))


def unsold(node: Node, presence: Presence | None) -> frozenset[str]:
    """The GPUs of the node that are leased, have failed, or are kept off the market with one that has."""
    leased = {gpu for gpus in node.leased.values() for gpu in gpus}
    offered = {gpu.uuid for gpu in node.gpus}
    quarantined = presence.quarantined if presence is not None else ()
    if any(one.closes_node and one.gpu in offered for one in quarantined):
        return frozenset(offered)
    return frozenset(leased.union(one.gpu for one in quarantined))


def history_of(known: Stored | None) -> History:
    """What is known of a node or provider; of one that was never alive, nothing."""
    return known if isinstance(known, History) else History()
