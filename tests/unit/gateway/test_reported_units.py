"""Every amount says its unit in its name, and a request means the same in it (dstack#1886, skypilot#9000)."""

import inspect
import re
from collections.abc import Iterator

import msgspec
import pytest

from volt.contracts import bids, clusters, http, jobs, ledger, market, nodes
from volt.contracts.http import JobRequest, WorkloadRequest
from volt_gateway.requests import job_command, read_job_request

_AMOUNT = re.compile(
    r"price|ask_|_ask|^ask|cap_|_cap|^cap|usd|due|fee|amount|balance|needed|wallet|on_hold|earned|pending"
)
_RATE = re.compile(r"price|ask|cap")
_NUMBERS = (int, float)


def _fields() -> Iterator[tuple[str, str]]:
    """Every field of every message and document that holds an amount: where it is, and its name."""
    for module in (bids, clusters, http, jobs, ledger, market, nodes):
        for name, struct in inspect.getmembers(module, inspect.isclass):
            if issubclass(struct, msgspec.Struct) and struct.__module__ == module.__name__:
                for field in msgspec.structs.fields(struct):
                    if _AMOUNT.search(field.name) and _holds_a_number(field.type, as_text=module is http):
                        yield f"{module.__name__}.{name}.{field.name}", field.name


def _holds_a_number(kind: object, *, as_text: bool) -> bool:
    """Whether a field holds a number, or on HTTP a number written as text."""
    kinds = getattr(kind, "__args__", (kind,))
    return any(one in _NUMBERS or (as_text and one is str) for one in kinds)


def request(**limits: str | None) -> JobRequest:
    body = {"gpu": "h100-80gb", "count": 8, "workload": {"command": ["x"]}, **limits}
    return read_job_request(msgspec.json.encode(body))


def test_every_amount_names_its_unit_and_every_price_what_it_is_for() -> None:
    found = dict(_fields())
    assert len(found) > 20
    for where, name in found.items():
        assert re.search(r"_(micro)?usd(_per_gpu_hour)?(_max)?$", name), where
        assert name.endswith("_per_gpu_hour") or not _RATE.search(name), where


@pytest.mark.parametrize("count", [1, 8, 64])
def test_a_cap_of_a_dollar_is_a_dollar_per_gpu_whatever_the_count(count: int) -> None:
    body = JobRequest(
        gpu="h100-80gb", count=count, workload=WorkloadRequest(command=("x",)), max_price_usd_per_gpu_hour="1.00"
    )
    assert job_command("lab", "r1", body).max_price_microusd_per_gpu_hour == 1_000_000


def test_a_cap_of_null_reaches_the_market_as_no_cap() -> None:
    """Reported as PrimeIntellect prime#141."""
    assert job_command("lab", "r1", request(max_price_usd_per_gpu_hour=None)).max_price_microusd_per_gpu_hour is None


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86_400), ("10m", 600), ("1d", 86_400)])
def test_a_duration_means_what_it_says(text: str, seconds: int) -> None:
    """Reported as akash helm-charts#37."""
    assert job_command("lab", "r1", request(max_duration=text)).max_duration_seconds == seconds
