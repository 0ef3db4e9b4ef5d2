"""The tree of places: a region holds sites, a site holds fabrics, a fabric holds nodes.

A domain is one vertex of the tree, written `fabric:<region>/<fabric>`, `site:<region>/<site>` or `region:<region>`.
What is unknown is in no domain: two unknown fabrics are never the same one.
"""

from collections.abc import Iterable, Mapping

from volt.contracts.bids import Place
from volt.contracts.ids import NodeId
from volt.contracts.jobs import Level

LEVELS: tuple[Level, ...] = ("fabric", "site", "region", "any")
"""Narrowest first."""
EVERYWHERE = "everywhere:"
"""The domain of level `any`, which every node is in."""

Domains = Mapping[Level, str]
"""The domain of each level that a node is in; empty where it is unknown."""


def domains_of(place: Place) -> Domains:
    """Where a place is in the tree. Below an unknown region nothing is known."""
    region, site, fabric = place.region, place.site, place.fabric
    return {
        "fabric": f"fabric:{region}/{fabric}" if region and fabric else "",
        "site": f"site:{region}/{site}" if region and site else "",
        "region": region_domain(region) if region else "",
        "any": EVERYWHERE,
    }


def region_domain(region: str) -> str:
    """The domain of a known region."""
    return f"region:{region}"


def node_domain(node: NodeId) -> str:
    """The domain of one node alone."""
    return f"node:{node}"


def is_within(domain: str, level: Level) -> bool:
    """Whether a domain is of this level or of a narrower one."""
    narrow = LEVELS[: LEVELS.index(level) + 1]
    return domain.partition(":")[0] in narrow


def shared(all_domains: Iterable[Domains], level: Level) -> str:
    """The one domain of this level that holds all of them; empty if none does."""
    found = {domains[level] for domains in all_domains}
    return found.pop() if len(found) == 1 else ""


def tightest(all_domains: Iterable[Domains]) -> str:
    """The narrowest domain that holds all of them; empty if none does."""
    held = tuple(all_domains)
    return next((domain for level in LEVELS[:-1] if (domain := shared(held, level))), "")


def broader_than(level: Level) -> tuple[Level, ...]:
    """The levels above this one, nearest first."""
    return LEVELS[LEVELS.index(level) + 1 :]
