"""The commands that are printed ask for what they say."""

import shlex
from pathlib import Path

import click
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volt.cli.asking import job_options, terms_of
from volt.cli.jobs import show_waiting
from volt.cli.suggesting import deploy_command, release_command, terms_of_shape
from volt.contracts.http import JobAlternative, JobShape, JobWaiting
from volt.sdk.calls import JobTerms, create_job

SHAPE = JobShape(
    models=("h100-80gb",),
    gpus=16,
    nodes=2,
    kind="ddp",
    command=("python", "train.py", "--name", "a b"),
    image="",
    env_names=(),
    interconnect="fabric",
    preferred_interconnect=None,
    preference_percent=10,
    min_bandwidth_gbps=0,
    interface=None,
    regions=(),
    regions_denied=(),
    countries=(),
    countries_denied=(),
    min_memory_mib=0,
    min_reliability_permille=0,
    tier=None,
    providers_excluded=(),
    max_wait_seconds=None,
    max_price_usd_per_gpu_hour=None,
    max_duration_seconds=None,
)
FEWER = JobAlternative(
    change="1 node with 8 GPUs", price_usd_per_gpu_hour="1.850000", gpus=8, nodes=1, max_price_usd_per_gpu_hour="2"
)
WAITING = JobWaiting(
    binding="free_gpus", message="1 node with 8 free, 2 nodes needed", infeasible=False, alternatives=(FEWER,)
)


def parsed(words: list[str]) -> JobTerms:
    """What `volt deploy` would ask for."""
    found: list[JobTerms] = []

    @click.command(context_settings={"allow_interspersed_args": False})
    @job_options
    @click.argument("command", nargs=-1, required=True)
    def deploy(command: tuple[str, ...], **options: object) -> None:
        found.append(terms_of(options, command))

    deploy.main(words, standalone_mode=False)
    return found[0]


def body(terms: JobTerms) -> bytes:
    return create_job(idempotency_key="k", **terms).body


shapes = st.builds(
    lambda **changed: msgspec.structs.replace(SHAPE, **changed),
    models=st.sampled_from([("h100-80gb",), ("h100-80gb", "h200-141gb")]),
    nodes=st.sampled_from([None, 1, 2]),
    kind=st.sampled_from(["ddp", "sweep"]),
    processes_per_node=st.sampled_from([None, 3]),
    command=st.sampled_from([("true",), ("sh", "-c", "echo 'it''s' \"$HOME\" && true"), ("run", "--", "-x", "")]),
    image=st.sampled_from(["", "registry.local:5000/team/app:1.2"]),
    preferred_interconnect=st.sampled_from([None, "fabric"]),
    interconnect=st.sampled_from(["any", "site"]),
    min_bandwidth_gbps=st.sampled_from([0, 400]),
    interface=st.sampled_from([None, "sxm"]),
    regions=st.sampled_from([(), ("eu", "us")]),
    regions_denied=st.sampled_from([(), ("mars",)]),
    countries=st.sampled_from([(), ("DE",)]),
    countries_denied=st.sampled_from([(), ("FR", "CH")]),
    min_memory_mib=st.sampled_from([0, 40_960]),
    min_reliability_permille=st.sampled_from([0, 995, 1_000]),
    tier=st.sampled_from([None, "datacenter"]),
    providers_excluded=st.sampled_from([(), ("lab",)]),
    max_wait_seconds=st.sampled_from([None, 0, 90]),
    max_price_usd_per_gpu_hour=st.sampled_from([None, "2.500000"]),
    max_duration_seconds=st.sampled_from([None, 3_600]),
    on_loss=st.sampled_from(["replace", "shrink", "stop"]),
    min_nodes=st.sampled_from([1, 2]),
    retries=st.sampled_from([0, 3]),
)


@given(shapes)
@settings(max_examples=100, deadline=None)
def test_the_command_of_a_job_asks_for_what_the_job_asked_for(shape: JobShape) -> None:
    words = shlex.split(deploy_command(terms_of_shape(shape), None))
    assert words[:2] == ["volt", "deploy"]
    assert body(parsed(words[2:])) == body(terms_of_shape(shape))


def test_a_preference_of_another_weight_is_said() -> None:
    shape = msgspec.structs.replace(SHAPE, preferred_interconnect="fabric", preference_percent=25)
    words = shlex.split(deploy_command(terms_of_shape(shape), None))
    assert body(parsed(words[2:])) == body(terms_of_shape(shape))


def test_values_of_the_environment_are_the_shell_s_to_give() -> None:
    terms = JobTerms(gpu="h100", count=1, command=["true"], env={"HF_TOKEN": "secret"})
    assert deploy_command(terms, Path("/a b")) == (
        "volt deploy --data '/a b' --gpu h100 --count 1 --kind ddp --env HF_TOKEN=\"${HF_TOKEN?}\" -- true"
    )


def test_each_alternative_comes_with_the_command_that_takes_it_up(capsys: pytest.CaptureFixture[str]) -> None:
    show_waiting(WAITING, terms_of_shape(SHAPE), release_first="j1")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "would clear now: 1 node with 8 GPUs: 8 GPUs at $1.850000 per GPU-hour",
        "  volt release j1 && volt deploy --gpu h100-80gb --count 8 --nodes 1 --kind ddp --interconnect fabric "
        "--max-price 2 -- python train.py --name 'a b'",
    ]


def test_a_job_is_released_where_it_was_asked_for() -> None:
    assert release_command("j1", Path("/data")) == "volt release j1 --data /data"
