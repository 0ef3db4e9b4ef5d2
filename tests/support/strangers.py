"""What a stranger may send: good messages with some fields changed, and what is wrong with each."""

from collections.abc import Mapping

import msgspec

ME, OTHER = "mallory", "alice"
NODE = "n1"
DEPTH = 100_000

JSON = Mapping[str, object]


def good_request(**changed: object) -> dict[str, object]:
    """A request that would be admitted, with some fields changed."""
    request: dict[str, object] = {
        "type": "RequestJob.v1",
        "account": ME,
        "request_id": "good",
        "gpu": "h100-80gb",
        "count": 2,
        "workload": {"command": ["true"]},
    }
    return request | changed


def good_bid(**changed: object) -> dict[str, object]:
    bid: dict[str, object] = {
        "type": "PlaceBid.v1",
        "account": ME,
        "node": NODE,
        "request_id": "bid",
        "gpus": [{"uuid": "GPU-1", "model": "h100-80gb"}],
        "terms": {"ask_microusd_per_gpu_hour": 1_000_000},
    }
    return bid | changed


def good_beat(**changed: object) -> dict[str, object]:
    beat: dict[str, object] = {
        "type": "Heartbeat.v1",
        "account": ME,
        "node": NODE,
        "incarnation": "first",
        "sequence": 1,
    }
    return beat | changed


def report(**changed: object) -> dict[str, object]:
    made: dict[str, object] = {
        "type": "ReportStarted.v1",
        "account": ME,
        "node": NODE,
        "lease": "jnosuch-1",
        "generation": 1,
    }
    return made | changed


def as_json(value: JSON) -> bytes:
    return msgspec.json.encode(value)


DEEP = b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b',"type":"RequestJob.v1"}'

NO_COMMANDS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not_json"),
    "cut off": (as_json(good_request())[:-1], "not_json"),
    "binary": (bytes(range(256)), "not_json"),
    "nested too deep": (DEEP, "not_json"),
    "an array": (b"[" * DEPTH, "unknown_type"),
    "without a tag": (as_json({"account": ME}), "unknown_type"),
    "unknown tag": (as_json(good_request(type="MakeCoffee.v1")), "unknown_type"),
    "an event": (as_json(good_request(type="JobAdmitted.v1")), "unknown_type"),
    "unknown version": (as_json(good_request(type="RequestJob.v2")), "unknown_version"),
    "a text for a number": (as_json(good_request(count="2")), "invalid_field"),
    "a fraction of a GPU": (as_json(good_request(count=1.5)), "invalid_field"),
    "null for a request id": (as_json(good_request(request_id=None)), "invalid_field"),
    "no request id": (as_json(good_request(request_id="")), "invalid_field"),
    "request id too long": (as_json(good_request(request_id="x" * 129)), "invalid_field"),
    "unknown kind": (as_json(good_request(workload={"command": ["true"], "kind": "mpi"})), "invalid_field"),
    "unknown field": (as_json(good_request(prioritty=1)), "invalid_field"),
    "field missing": (as_json({"type": "RequestJob.v1", "account": ME}), "invalid_field"),
    "account of another": (as_json(good_request(account=OTHER)), "wrong_subject"),
    "account is no id": (as_json(good_request(account="a.b\n")), "invalid_field"),
    "over 256 KiB": (as_json(good_request(gpu="x" * 300_000)), "too_large"),
    "a job that is not there": (
        as_json({"type": "ReleaseJob.v1", "account": ME, "request_id": "r", "job": "jnosuch"}),
        "not_found",
    ),
}


JOBS_REFUSED: dict[str, tuple[JSON, str]] = {
    "no GPU": ({"count": 0}, "count_out_of_range"),
    "less than none": ({"count": -8}, "count_out_of_range"),
    "a number of 30 digits": ({"count": 10**30}, "count_out_of_range"),
    "cap of 30 digits": ({"max_price_microusd_per_gpu_hour": 10**30}, "price_out_of_range"),
    "uneven": ({"count": 7, "nodes": 2}, "uneven_nodes"),
    "cap of zero": ({"max_price_microusd_per_gpu_hour": 0}, "price_out_of_range"),
    "cap below zero": ({"max_price_microusd_per_gpu_hour": -1}, "price_out_of_range"),
    "no command": ({"workload": {"command": []}}, "no_command"),
    "reserved variable": ({"workload": {"command": ["true"], "env": {"RANK": "7"}}}, "reserved_env_name"),
    "no time": ({"max_duration_seconds": 0}, "duration_out_of_range"),
}
