"""How far a provider's nodes can be relied on, by the formula of `volt.contracts.reliability`, as HTTP shows it."""

from collections.abc import Sequence

from volt.contracts.http_market import NODES_RATED_MAX, NodeReliability, ProviderReliability, WeighedMishap
from volt.contracts.reliability import COST_MS, Record, aged, node_permille, provider_permille, weight
from volt_gateway.entities import History, PastMishap, history_doc, nodes_ranking
from volt_gateway.health import history_of
from volt_gateway.views import ViewStore


async def reliability_of(views: ViewStore, provider: str) -> ProviderReliability:
    """How far a provider's nodes can be relied on, and why, as of the last event in the views. Raises Unavailable."""
    position = await views.position()
    names = [name.decode() for name in await views.lowest(nodes_ranking(provider), 0, NODES_RATED_MAX)]
    found = await views.documents([history_doc(provider), *(history_doc(provider, name) for name in names)])
    whole = history_of(found.get(history_doc(provider))).record
    at_ms = max(position.at_ms if position is not None else 0, whole.at_ms)
    return ProviderReliability(
        provider=provider,
        at_ms=at_ms,
        reliability_permille=provider_permille(whole, at_ms),
        good_ms=round(aged(whole, at_ms).good_ms),
        bad_ms=round(aged(whole, at_ms).bad_ms),
        nodes=_rated(names, [history_of(found.get(history_doc(provider, name))) for name in names], whole, at_ms),
    )


def _rated(
    names: Sequence[str], histories: Sequence[History], provider: Record, at_ms: int
) -> tuple[NodeReliability, ...]:
    return tuple(
        NodeReliability(
            node=name,
            reliability_permille=node_permille(one.record, provider, at_ms),
            alive=one.record.alive > 0,
            good_ms=round(aged(one.record, at_ms).good_ms),
            bad_ms=round(aged(one.record, at_ms).bad_ms),
            mishaps=tuple(_weighed(mishap, at_ms) for mishap in reversed(one.mishaps)),
        )
        for name, one in zip(names, histories, strict=True)
    )


def _weighed(mishap: PastMishap, at_ms: int) -> WeighedMishap:
    age_ms = max(0, at_ms - mishap.at_ms)
    return WeighedMishap(
        kind=mishap.kind,
        what=mishap.what,
        at_ms=mishap.at_ms,
        age_ms=age_ms,
        cost_ms=COST_MS[mishap.kind],
        weight_permille=round(1_000 * weight(age_ms)),
    )
