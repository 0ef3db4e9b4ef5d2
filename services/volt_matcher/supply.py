"""Who offers which GPUs, and which of them are free.

A UUID is the first node's that offers it; to a later one it does not exist until the first gives it up. A lease holds
its GPUs until it is cleared, whatever its node offers meanwhile. A quarantined GPU is not for sale; while its node
offers one that closes it, none of the node's are.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from volt.contracts.bids import BidAccepted, Gpu, NodeDrainAccepted, NodeResumeAccepted
from volt.contracts.gpus import BY_SLUG
from volt.contracts.ids import AccountId, GpuUuid, LeaseId, NodeId
from volt.contracts.jobs import RELIABILITY_PERMILLE_MAX
from volt.contracts.market import Gang
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
from volt_matcher.lots import Lot
from volt_matcher.state import Lease, Offer, State
from volt_matcher.topology import domains_of


def offer(state: State, bid: BidAccepted) -> None:
    """The node's bid from now on, in place of the one before it."""
    gpus = {gpu.uuid: gpu for gpu in bid.gpus}
    _unclaim(state, bid.node, keep=gpus)
    for uuid in gpus:
        claimants = state.claims.get(uuid, ())
        if bid.node not in claimants:
            state.claims[uuid] = (*claimants, bid.node)
    by_uuid = tuple(gpus[uuid] for uuid in sorted(gpus))
    state.offers[bid.node] = Offer(bid, by_uuid, domains_of(bid.place))
    state.places[bid.node] = bid.place
    _refresh_all(state, (bid.node,))


def withdraw(state: State, node: NodeId) -> None:
    """The node offers nothing."""
    _unclaim(state, node, keep=())
    state.offers.pop(node, None)
    _refresh_all(state, (node,))


def see(state: State, event: NodeEvent) -> None:
    """What the monitor says of the node: whether it is alive, how far it can be relied on, which GPUs have failed."""
    known = (event.account, event.node)
    before = _seen(state, known)
    match event:
        case NodeAlive():
            state.alive.add(known)
            state.reliability_permille[known] = event.reliability_permille
        case NodeUnknown() | NodeLost():
            state.alive.discard(known)
        case NodeRated() | GpuFaulted():
            state.reliability_permille[known] = event.reliability_permille
        case GpuQuarantined() | NodeQuarantined():
            state.reliability_permille[known] = event.reliability_permille
            closes_node = isinstance(event, NodeQuarantined)
            state.quarantined[known] = {**before.quarantined, **dict.fromkeys(event.gpus, closes_node)}
        case QuarantineEnded():
            left = {gpu: closes for gpu, closes in before.quarantined.items() if gpu not in event.gpus}
            state.quarantined[known] = left
        case _:
            raise AssertionError(f"the matcher does not read {type(event).__name__}")
    if _seen(state, known) != before:
        _refresh_all(state, (event.node,))


class _Seen(NamedTuple):
    alive: bool
    reliability_permille: int | None
    quarantined: Mapping[GpuUuid, bool]


def _seen(state: State, known: tuple[AccountId, NodeId]) -> _Seen:
    return _Seen(known in state.alive, state.reliability_permille.get(known), state.quarantined.get(known, {}))


def drain(state: State, event: NodeDrainAccepted | NodeResumeAccepted) -> None:
    """The node is emptied, or is so no longer."""
    key = (event.account, event.node)
    if isinstance(event, NodeDrainAccepted):
        state.drained.add(key)
    else:
        state.drained.discard(key)
    _refresh_all(state, (event.node,))


def hold(state: State, gang: Gang, until_ms: int | None) -> None:
    """The gang's GPUs are the job's from now on, and nobody else's."""
    granted = [uuid for grant in gang.grants for uuid in grant.gpus]
    assert state.leased.isdisjoint(granted), f"{gang.job} is granted GPUs that are leased"
    for grant in gang.grants:
        state.leases[grant.lease] = Lease(gang.job, grant.node, gang.model, grant.gpus, until_ms)
        state.leased_on[grant.node] = state.leased_on.get(grant.node, frozenset()).union(grant.gpus)
    state.leased.update(granted)
    _refresh_all(state, [grant.node for grant in gang.grants] + _owners(state, granted))


def free(state: State, name: LeaseId) -> None:
    """The node has nothing of the lease left."""
    lease = state.leases.pop(name, None)
    if lease is None:
        return
    state.leased.difference_update(lease.gpus)
    state.leased_on[lease.node] = state.leased_on[lease.node].difference(lease.gpus)
    if not state.leased_on[lease.node]:
        del state.leased_on[lease.node]
    _refresh_all(state, [lease.node, *_owners(state, lease.gpus)])


def _unclaim(state: State, node: NodeId, keep: Iterable[GpuUuid]) -> None:
    """The node gives up what it offered, except for `keep`; the next node that offers a UUID gets it."""
    standing = state.offers.get(node)
    given_up = {gpu.uuid for gpu in standing.gpus}.difference(keep) if standing else ()
    for uuid in given_up:
        left = tuple(claimant for claimant in state.claims.pop(uuid) if claimant != node)
        if left:
            state.claims[uuid] = left
            _refresh_all(state, left[:1])


def _owners(state: State, gpus: Iterable[GpuUuid]) -> list[NodeId]:
    """The nodes that offer these GPUs now, whoever they were leased from."""
    return [state.claims[uuid][0] for uuid in gpus if uuid in state.claims]


def _refresh_all(state: State, nodes: Iterable[NodeId]) -> None:
    for node in set(nodes):
        _refresh(state, node)
    state.changes += 1


def _refresh(state: State, name: NodeId) -> None:
    """Brings the node's lots, and the book, up to date.

    A node that no longer offers a GPU of a running lease has lost it, and sells nothing until that lease is cleared.
    """
    lots = tuple(_lots(state, name))
    offered = {lot.key for lot in lots}
    for before in state.lots.pop(name, ()):
        state.due_ms.pop(("window", _window(before)), None)
        if before.key not in offered:
            state.book.drop(before.key)
    for lot in lots:
        state.book.put(lot)
        if lot.available_from_ms is not None:
            state.due_ms["window", _window(lot)] = lot.available_from_ms
    if lots:
        state.lots[name] = lots


def _window(lot: Lot) -> str:
    """Each lot has its own: a node's models may come on the market one by one."""
    return f"{lot.node}/{lot.model}"


def _lots(state: State, name: NodeId) -> Iterator[Lot]:
    standing = state.offers.get(name)
    if standing is None:
        return
    bid = standing.bid
    quarantined = state.quarantined.get((bid.account, name), {})
    is_whole = state.leased_on.get(name, frozenset()) <= {gpu.uuid for gpu in standing.gpus}
    is_open = not any(quarantined.get(gpu.uuid, False) for gpu in standing.gpus)
    by_model: dict[str, list[Gpu]] = {}
    for gpu in standing.gpus:
        if state.claims[gpu.uuid][0] == name and gpu.uuid not in quarantined:
            by_model.setdefault(gpu.model, []).append(gpu)
    key = (bid.account, name)
    for model, gpus in by_model.items():
        terms = bid.terms_of(model)
        yield Lot(
            node=name,
            model=model,
            provider=bid.account,
            place=bid.place,
            domains=standing.domains,
            ask_microusd_per_gpu_hour=terms.ask_microusd_per_gpu_hour,
            alive=key in state.alive and key not in state.drained and not terms.paused,
            total=len(gpus) if is_open else 0,
            free=tuple([gpu.uuid for gpu in gpus if gpu.uuid not in state.leased]) if is_whole and is_open else (),
            memory_mib=min([gpu.memory_mib for gpu in gpus]),
            interface=BY_SLUG[model].interface if model in BY_SLUG else None,
            bandwidth_gbps=bid.place.bandwidth_gbps,
            tier=bid.tier,
            runtime=bid.runtime,
            reliability_permille=state.reliability_permille.get(key, RELIABILITY_PERMILLE_MAX),
            min_gpus=terms.gpus_min,
            max_duration_seconds=terms.max_duration_seconds,
            available_from_ms=terms.available_from_ms,
            available_until_ms=terms.available_until_ms,
        )
