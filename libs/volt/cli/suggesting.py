"""Commands that can be run as they are printed."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from volt.contracts.gpus import MIB_PER_GIB
from volt.contracts.http import JobShape
from volt.contracts.jobs import PREFERENCE_PERCENT
from volt.sdk.calls import JobTerms


def terms_of_shape(shape: JobShape) -> JobTerms:
    """What was asked for with a job. The values of its environment are not told: each is empty."""
    return JobTerms(
        gpu=shape.models,
        count=shape.gpus,
        nodes=shape.nodes,
        command=shape.command,
        kind=shape.kind,
        processes_per_node=shape.processes_per_node,
        image=shape.image,
        env=dict.fromkeys(shape.env_names, ""),
        interconnect=shape.interconnect,
        preferred_interconnect=shape.preferred_interconnect,
        preference_percent=shape.preference_percent,
        min_bandwidth_gbps=shape.min_bandwidth_gbps,
        interface=shape.interface,
        regions=shape.regions,
        regions_denied=shape.regions_denied,
        countries=shape.countries,
        countries_denied=shape.countries_denied,
        min_memory_mib=shape.min_memory_mib,
        min_reliability_permille=shape.min_reliability_permille,
        tier=shape.tier,
        providers_excluded=shape.providers_excluded,
        max_price_usd_per_gpu_hour=shape.max_price_usd_per_gpu_hour,
        max_duration=None if shape.max_duration_seconds is None else f"{shape.max_duration_seconds}s",
        max_wait=None if shape.max_wait_seconds is None else f"{shape.max_wait_seconds}s",
        on_loss=shape.on_loss,
        min_nodes=shape.min_nodes,
        retries=shape.retries,
    )


def deploy_command(terms: JobTerms, data: Path | None) -> str:
    """The command that asks for such a job. Values of the environment, which may be secrets, come from the shell's."""
    # The shell stops with the name of a variable that it does not have.
    variables = [f'--env {name}="${{{name}?}}"' for name in terms.get("env") or {}]
    words = ["volt", "deploy", *_data(data), *_options(terms)]
    return " ".join([shlex.join(words), *variables, "--", shlex.join(terms["command"])])


def release_command(job: str, data: Path | None) -> str:
    """The command that ends a job."""
    return shlex.join(["volt", "release", job, *_data(data)])


def _data(data: Path | None) -> list[str]:
    return [] if data is None else ["--data", str(data)]


def _unless(value: object, understood: object) -> object:
    return None if value == understood else value


def _options(terms: JobTerms) -> Iterator[str]:
    """The options that say what is asked for, without those that would say what is understood anyway."""
    gpu = terms["gpu"]
    reliability_permille = terms.get("min_reliability_permille", 0)
    preferred = terms.get("preferred_interconnect")
    percent = terms.get("preference_percent", PREFERENCE_PERCENT)
    said: tuple[tuple[str, object], ...] = (
        ("gpu", gpu if isinstance(gpu, str) else ",".join(gpu)),
        ("count", terms["count"]),
        ("nodes", terms.get("nodes")),
        ("kind", terms.get("kind", "ddp")),
        ("processes-per-node", terms.get("processes_per_node")),
        ("image", terms.get("image")),
        ("interconnect", terms.get("interconnect")),
        ("prefer", preferred),
        ("prefer-percent", str(percent) if preferred and percent != PREFERENCE_PERCENT else None),
        ("min-bandwidth", terms.get("min_bandwidth_gbps")),
        ("interface", terms.get("interface")),
        # Cards are of whole GiB, so the next whole number asks for the same ones.
        ("min-memory", -(-terms.get("min_memory_mib", 0) // MIB_PER_GIB)),
        ("min-reliability", f"{reliability_permille / 10:.1f}" if reliability_permille else None),
        ("tier", terms.get("tier")),
        ("max-price", terms.get("max_price_usd_per_gpu_hour")),
        ("max-duration", terms.get("max_duration")),
        ("max-wait", terms.get("max_wait")),
        ("on-loss", _unless(terms.get("on_loss"), "replace")),
        ("min-nodes", _unless(terms.get("min_nodes"), 1)),
        ("retries", terms.get("retries")),
    )
    for name, value in said:
        if value:
            yield from (f"--{name}", str(value))
    several = (
        ("region", terms.get("regions", ())),
        ("not-region", terms.get("regions_denied", ())),
        ("country", terms.get("countries", ())),
        ("not-country", terms.get("countries_denied", ())),
        ("not-provider", terms.get("providers_excluded", ())),
    )
    for name, values in several:
        for value in values:
            yield from (f"--{name}", value)
