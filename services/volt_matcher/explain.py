"""Why a job waits, and what would clear now."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from volt.contracts.market import Waiting
from volt.contracts.units import format_usd
from volt_matcher.alternatives import alternatives, nodes_in_words
from volt_matcher.lots import Request, level_of
from volt_matcher.state import FIRST_ATTEMPT, Opening, Reason
from volt_matcher.survey import Shortfall, Survey
from volt_matcher.topology import node_domain

REASONS_PER_PASS_MAX = 32
"""Reasons are dear to find, and grants should not wait for them."""
TOO_LARGE = "message_size"
"""What binds when a gang fits the market and no message."""


_TOO_LARGE = Shortfall(TOO_LARGE, 0, 0, (), 0, 0, 0)


class Unplaced(NamedTuple):
    """What a pass could not place."""

    opening: Opening
    is_too_large: bool = False


def news(survey: Survey, unplaced: Iterable[Unplaced]) -> Iterator[Waiting]:
    """What is new about the jobs that wait: one reason for each whose reason is another than it was told."""
    return islice(_news(survey, unplaced), REASONS_PER_PASS_MAX)


def reason_of(survey: Survey, opening: Opening) -> Waiting:
    """Why a request that is only asked about gets nothing now. A gang that no message can hold is granted to nobody."""
    short = survey.shortfall(opening.request) or _TOO_LARGE
    return _waiting(survey, opening, short, Reason(short.binding, _is_infeasible(survey, opening.request)))


def _is_infeasible(survey: Survey, request: Request) -> bool:
    """Whether no shape of it would fit if nothing were leased."""
    shapes = (replace(request, shapes=(shape,)) for shape in request.shapes)
    return all(survey.shortfall(one, if_all_were_free=True) is not None for one in shapes)


def _news(survey: Survey, unplaced: Iterable[Unplaced]) -> Iterator[Waiting]:
    seen = set[str]()
    for opening, is_too_large in unplaced:
        if opening.job in seen:
            continue
        seen.add(opening.job)
        short = None if is_too_large else survey.shortfall(opening.request)
        if short is None:
            assert is_too_large, f"{opening.job} fits and was left out"
            short = _TOO_LARGE
        is_infeasible = is_too_large or _is_infeasible(survey, opening.request)
        reason = Reason(short.binding, is_infeasible)
        if reason != survey.reasons.get(opening.job):
            yield _waiting(survey, opening, short, reason)


def _waiting(survey: Survey, opening: Opening, short: Shortfall, reason: Reason) -> Waiting:
    """What a job is told that waits. A running cluster cannot change its request, so it is offered no other."""
    is_first = opening.attempt == FIRST_ATTEMPT
    message = _message(opening.request, short)
    is_changeable = is_first and short.binding != TOO_LARGE
    return Waiting(
        job=opening.job,
        account=opening.account,
        binding=reason.binding,
        message=message if is_first else f"{_what_for(opening)} {opening.rank}: {message}",
        infeasible=reason.infeasible,
        funnel=short.funnel,
        alternatives=alternatives(survey.book, opening.request, short) if is_changeable else (),
    )


def _what_for(opening: Opening) -> str:
    return "growth by rank" if opening.is_growth else "replacement of rank"


def _message(request: Request, short: Shortfall) -> str:
    """One line for a person: what the binding filter found, and what was needed."""
    kept, needed = short.kept, nodes_in_words(request.nodes)
    match short.binding:
        case "message_size":
            return f"a grant of {needed} is larger than a message may be; ask for fewer"
        case "alive":
            return f"{nodes_in_words(kept)} alive of {short.shown} on offer, {needed} needed"
        case "excluded":
            return f"{nodes_in_words(kept)} left that the job may still go to, {needed} needed"
        case "model":
            return f"{nodes_in_words(kept)} with {' or '.join(sorted(request.models))}, {needed} needed"
        case "memory":
            return f"{nodes_in_words(kept)} with GPUs of {request.min_memory_mib} MiB, {needed} needed"
        case "free_gpus":
            return _of_free_gpus(request, short)
        case "interconnect":
            return _of_interconnect(request, short)
        case "region" | "country" as place:
            places = "regions" if place == "region" else "countries"
            return f"{nodes_in_words(kept)} in the {places} asked for, {needed} needed{_together(request)}"
        case "price":
            return _of_price(request, short)
        case "runtime":
            run = "images" if request.runtime == "docker" else "jobs without an image"
            return f"{nodes_in_words(kept)} that run {run}, {needed} needed"
        case "terms":
            return f"{nodes_in_words(kept)} whose terms allow so few GPUs for so long, {needed} needed"
        case other:
            return f"{nodes_in_words(kept)} with the {other} asked for, {needed} needed"


def _of_free_gpus(request: Request, short: Shortfall) -> str:
    kept, each = short.kept, request.gpus_per_node
    if kept:
        return f"{nodes_in_words(kept)} with {each} free, {nodes_in_words(request.nodes)} needed"
    where = "on one node" if request.nodes == 1 else f"on each of {nodes_in_words(request.nodes)}"
    return f"largest node has {short.largest_free} free, {each} needed {where}"


def _of_interconnect(request: Request, short: Shortfall) -> str:
    shown, most = nodes_in_words(short.shown), short.largest_crowd
    if request.home.startswith(node_domain("")):
        alone = request.home.removeprefix(node_domain(""))
        return f"the {request.interconnect} of {alone} is unknown, so none of {shown} is known to be on it"
    if request.home:
        return f"none of {shown} is in {request.home}, where the rest of the cluster is"
    level = level_of(request, request.nodes)
    if level == "any":
        return f"only one node is within NVLink's reach, {request.nodes} needed"
    if not most:
        return f"none of {shown} says which {level} it is in, {request.nodes} needed in one {level}"
    return f"largest {level} has {nodes_in_words(most)} that would do, {request.nodes} needed in one {level}"


def _of_price(request: Request, short: Shortfall) -> str:
    assert request.cap_microusd_per_gpu_hour is not None, "no cap excludes nobody"
    cap, lowest = format_usd(request.cap_microusd_per_gpu_hour), format_usd(short.lowest_ask_microusd)
    return (
        f"{nodes_in_words(short.kept)} asking at most ${cap} per GPU-hour, {nodes_in_words(request.nodes)} "
        f"needed{_together(request)}; the lowest ask is ${lowest}"
    )


def _together(request: Request) -> str:
    level = level_of(request, request.nodes)
    return "" if level == "any" else f" in one {level}"
