"""An alternative reads as one phrase."""

import msgspec
import pytest

from volt.contracts.market import Alternative
from volt_gateway.wording import in_words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_price_microusd_per_gpu_hour": 1_600_000}, "a cap of $1.600000 per GPU-hour"),
        ({"interconnect": "any"}, "nodes anywhere"),
        ({"interconnect": "site"}, "nodes in one site"),
        ({"nodes": 4, "interconnect": "fabric"}, "4 nodes with 2 GPUs each in one fabric"),
        ({"nodes": 8, "interconnect": "any"}, "8 nodes with 1 GPU each anywhere"),
        ({"nodes": 1}, "1 node with 8 GPUs"),
        ({"dropped": "regions", "places": ("", "us")}, "another region: an unknown one, us"),
        ({"dropped": "image"}, "no image"),
        (
            {"dropped": "tier", "max_price_microusd_per_gpu_hour": 2_000_000},
            "nodes of any tier and a cap of $2.000000 per GPU-hour",
        ),
        ({}, "8 GPUs"),
    ],
)
def test_it_says_what_is_to_be_asked_for(change: dict[str, object], words: str) -> None:
    told = {"price_microusd_per_gpu_hour": 1_000_000, "gpus": 8, **change}
    assert in_words(msgspec.convert(told, Alternative)) == words


def test_an_alternative_of_an_older_log_is_read_as_what_is_known_of_it() -> None:
    old = b'{"change":"2 nodes with 4 GPUs each","price_microusd_per_gpu_hour":1000000,"gpus":8}'
    assert in_words(msgspec.json.decode(old, type=Alternative)) == "8 GPUs"
