"""What is asked for by who takes up an alternative."""

from typing import assert_never

from volt.contracts.http import JobAlternative
from volt.contracts.market import Droppable
from volt.sdk.calls import JobTerms


def with_alternative(terms: JobTerms, alternative: JobAlternative) -> JobTerms:
    """The terms with what the alternative changes of them: asked for as long as supply is what it was, they clear.

    >>> waiting = client.jobs.get(job.id).waiting
    >>> client.jobs.create(**with_alternative(terms, waiting.alternatives[0]))
    """
    changed = terms.copy()
    if alternative.nodes is not None:
        changed["count"], changed["nodes"] = alternative.gpus, alternative.nodes
    if alternative.interconnect is not None:
        changed["interconnect"] = alternative.interconnect
    if alternative.max_price_usd_per_gpu_hour is not None:
        changed["max_price_usd_per_gpu_hour"] = alternative.max_price_usd_per_gpu_hour
    if alternative.dropped is not None:
        _drop(changed, alternative.dropped)
    return changed


def _drop(terms: JobTerms, constraint: Droppable) -> None:
    match constraint:
        case "image":
            terms["image"] = ""
        case "min_memory_mib":
            terms["min_memory_mib"] = 0
        case "interface":
            terms["interface"] = None
        case "min_bandwidth_gbps":
            terms["min_bandwidth_gbps"] = 0
        case "min_reliability_permille":
            terms["min_reliability_permille"] = 0
        case "tier":
            terms["tier"] = None
        case "regions":
            terms["regions"] = terms["regions_denied"] = ()
        case "countries":
            terms["countries"] = terms["countries_denied"] = ()
        case "providers_excluded":
            terms["providers_excluded"] = ()
        case other:
            assert_never(other)
