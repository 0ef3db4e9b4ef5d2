"""Taking up an alternative changes what it says and nothing else."""

import msgspec
import pytest

from volt.contracts.http import JobAlternative
from volt.sdk import with_alternative
from volt.sdk.calls import JobTerms

ASKED = JobTerms(
    gpu="h100",
    count=16,
    nodes=2,
    command=["true"],
    image="app:1",
    interconnect="fabric",
    regions=["eu"],
    regions_denied=["us"],
    countries=["DE"],
    countries_denied=["FR"],
    min_memory_mib=1,
    interface="sxm",
    min_bandwidth_gbps=1,
    min_reliability_permille=1,
    tier="datacenter",
    providers_excluded=["p"],
    max_price_usd_per_gpu_hour="1",
)


@pytest.mark.parametrize(
    ("alternative", "changed"),
    [
        ({"max_price_usd_per_gpu_hour": "2"}, {"max_price_usd_per_gpu_hour": "2"}),
        ({"interconnect": "any"}, {"interconnect": "any"}),
        ({"nodes": 3}, {"count": 6, "nodes": 3}),
        ({"nodes": 3, "interconnect": "site"}, {"count": 6, "nodes": 3, "interconnect": "site"}),
        ({"dropped": "image"}, {"image": ""}),
        ({"dropped": "min_memory_mib"}, {"min_memory_mib": 0}),
        ({"dropped": "interface"}, {"interface": None}),
        ({"dropped": "min_bandwidth_gbps"}, {"min_bandwidth_gbps": 0}),
        ({"dropped": "min_reliability_permille"}, {"min_reliability_permille": 0}),
        ({"dropped": "tier"}, {"tier": None}),
        ({"dropped": "regions"}, {"regions": (), "regions_denied": ()}),
        ({"dropped": "countries"}, {"countries": (), "countries_denied": ()}),
        ({"dropped": "providers_excluded"}, {"providers_excluded": ()}),
        ({"dropped": "tier", "max_price_usd_per_gpu_hour": "2"}, {"tier": None, "max_price_usd_per_gpu_hour": "2"}),
    ],
)
def test_the_terms_are_those_with_the_change(alternative: dict[str, object], changed: dict[str, object]) -> None:
    before = dict(ASKED)
    told = msgspec.convert({"change": "", "price_usd_per_gpu_hour": "2", "gpus": 6, **alternative}, JobAlternative)
    assert with_alternative(ASKED, told) == {**ASKED, **changed}
    assert before == ASKED
