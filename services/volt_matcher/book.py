"""The supply of one pass: what is free, less what the pass itself has granted so far."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from volt.contracts.ids import JobId, NodeId
from volt_matcher.feasible import Node, Request, Shortfall
from volt_matcher.place import Placement, fit


class Book:
    """Free GPUs by node. Taking from it never changes what it was made of."""

    def __init__(self, nodes: Mapping[NodeId, Node], held: Iterable[tuple[JobId, NodeId]] = ()) -> None:
        self._nodes = dict(nodes)
        self._held: dict[JobId, set[NodeId]] = {}
        self._fits: dict[Request, Placement | Shortfall] = {}
        for job, node in held:
            self._held.setdefault(job, set()).add(node)

    def fit(self, request: Request) -> Placement | Shortfall:
        """Where the request goes, or why nowhere. Equal requests are looked up once until something is taken."""
        if request not in self._fits:
            self._fits[request] = fit(self._nodes.values(), request)
        return self._fits[request]

    def held_by(self, job: JobId) -> frozenset[NodeId]:
        """The nodes of which the job holds GPUs."""
        return frozenset(self._held.get(job, ()))

    def take(self, job: JobId, placement: Placement) -> None:
        """The seats' GPUs are no longer free."""
        self._fits.clear()
        for node, gpus in placement.seats:
            left = tuple(gpu for gpu in node.free if gpu.uuid not in gpus)
            self._nodes[node.id] = replace(node, free=left)
            self._held.setdefault(job, set()).add(node.id)

    def if_all_were_free(self) -> "Book":
        """The same nodes without any lease."""
        return Book({name: replace(node, free=node.gpus) for name, node in self._nodes.items()})
