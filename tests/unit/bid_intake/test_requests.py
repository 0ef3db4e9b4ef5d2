"""What a job request must be, and its canonical form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.bid_intake.build import USD, request, run, with_env
from volt.contracts.errors import SEEN_CHARS_MAX, Reason
from volt.contracts.jobs import (
    COMMAND_ARGS_MAX,
    COMMAND_BYTES_MAX,
    ENV_BYTES_MAX,
    ENV_VARS_MAX,
    GANG_KINDS,
    GPUS_PER_NODE_MAX,
    GPUS_PER_NODE_UNASKED_MAX,
    IMAGE_CHARS_MAX,
    MODELS_MAX,
    NODES_MAX,
    PROCESSES_PER_NODE_MAX,
    REGIONS_MAX,
    SHAPES_MAX,
    Constraints,
    JobSpec,
    RequestJob,
    Shape,
    WorkloadKind,
)
from volt.contracts.messages import MESSAGE_BYTES_MAX, encode
from volt.contracts.units import DURATION_SECONDS_MAX, PRICE_MICROUSD_PER_GPU_HOUR_MAX
from volt_bid_intake.rules import specify

KINDS: tuple[WorkloadKind, ...] = ("ddp", "fsdp", "ray", "service", "sweep", "batch", "inference")


def admitted(command: RequestJob) -> JobSpec:
    spec = specify(command)
    assert isinstance(spec, JobSpec), spec
    return spec


def shapes(*sizes: int) -> tuple[Shape, ...]:
    """Shapes of nodes and GPUs on each, in turn."""
    return tuple(Shape(nodes=nodes, gpus_per_node=each) for nodes, each in zip(sizes[::2], sizes[1::2], strict=True))


def refused(command: RequestJob) -> Reason:
    reason = specify(command)
    assert isinstance(reason, Reason), reason
    return reason


def test_a_plain_request_is_taken_as_it_is_meant() -> None:
    spec = admitted(request(gpu="NVIDIA H100 80GB HBM3", count=8))
    assert spec == JobSpec(
        models=("h100-80gb",), shapes=shapes(1, 8, 2, 4, 4, 2, 8, 1), workload=run(), interconnect="fabric"
    )


@pytest.mark.parametrize(
    ("count", "nodes", "shape"),
    [
        (1, None, (1, 1)),
        (8, None, (1, 8, 2, 4, 4, 2, 8, 1)),
        (12, None, (2, 6, 3, 4, 4, 3, 6, 2, 12, 1)),
        (11, None, (11, 1)),
        (32, None, (4, 8, 8, 4, 16, 2, 32, 1)),
        (32, 2, (2, 16)),
        (8, 8, (8, 1)),
        (2048, None, (256, 8)),
    ],
)
def test_any_even_shape_will_do_the_fewest_nodes_first_unless_nodes_are_asked_for(
    count: int, nodes: int | None, shape: tuple[int, ...]
) -> None:
    assert admitted(request(count=count, nodes=nodes)).shapes == shapes(*shape)


@given(count=st.integers(-10, 5_000), nodes=st.none() | st.integers(-2, 300))
def test_a_shape_has_every_gpu_and_keeps_every_bound(count: int, nodes: int | None) -> None:
    spec = specify(request(count=count, nodes=nodes))
    if isinstance(spec, JobSpec):
        assert 1 <= len(spec.shapes) <= SHAPES_MAX
        for shape in spec.shapes:
            assert shape.gpus == count
            assert 1 <= shape.nodes <= NODES_MAX
            assert 1 <= shape.gpus_per_node <= GPUS_PER_NODE_MAX
        if nodes is None:
            fewer = range(1, spec.shapes[0].nodes)
            assert all(count % one or count // one > GPUS_PER_NODE_UNASKED_MAX for one in fewer)
        else:
            assert [shape.nodes for shape in spec.shapes] == [nodes]
    else:
        assert spec.field in {"count", "nodes"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_gangs_need_one_fabric_those_of_one_node_too_since_they_may_grow(kind: WorkloadKind, nodes: int) -> None:
    spec = admitted(request(count=8, nodes=nodes, workload=replace(run(), kind=kind)))
    assert spec.interconnect == ("fabric" if kind in GANG_KINDS else "any")


def test_an_interconnect_that_is_asked_for_is_not_overruled() -> None:
    for level in ("any", "fabric", "site"):
        assert admitted(request(count=16, constraints=Constraints(interconnect=level))).interconnect == level


def test_any_of_several_models_is_each_once_in_the_order_asked_for() -> None:
    spec = admitted(request(gpu=("RTX 4090", "h100-80gb", "rtx-4090-24gb")))
    assert spec.models == ("rtx-4090-24gb", "h100-80gb")


def test_no_cap_is_no_cap() -> None:
    assert admitted(request(cap_microusd=None)).max_price_microusd_per_gpu_hour is None
    assert admitted(request(cap_microusd=1)).max_price_microusd_per_gpu_hour == 1


@pytest.mark.parametrize(
    "image",
    [
        "",
        "ubuntu",
        "ubuntu:24.04",
        "registry.local:5000/team/app:1.2@sha256:" + "0123456789abcdef" * 4,
        "localhost/a__b/c-d.e",
        "[2001:db8::1]:5000/team/app",
        "nvcr.io/nvidia/pytorch:25.01-py3",
        "app@sha256:" + "A" * 64,
    ],
)
def test_images_by_the_grammar_of_references_pass(image: str) -> None:
    assert admitted(request(workload=replace(run(), image=image))).workload.image == image


@pytest.mark.parametrize(
    "image",
    [
        "Ubuntu",
        "ubuntu:",
        "ubuntu:a b",
        "ubuntu\n",
        ":latest",
        "a//b",
        "a/",
        "/a",
        "a@sha256:short",
        "-v /:/host ubuntu",
        "a" * 300,
        "https://registry.local/app",
        "ubuntu:é",
    ],
)
def test_other_images_are_refused(image: str) -> None:
    reason = refused(request(workload=replace(run(), image=image)))
    assert (reason.code, reason.field) == ("invalid_image", "workload.image")


@pytest.mark.parametrize("value", ["", "a b", "'\"", "a=b", "two\nlines", "$HOME `id`", "日本 🚀", "\x7f", "%s"])
def test_an_environment_keeps_its_exact_text(value: str) -> None:
    assert admitted(request(workload=with_env(_x1=value))).workload.env == {"_x1": value}


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "BASH_FUNC_x%%", "É", "A\n", "A\0"])
def test_a_name_that_no_shell_takes_is_refused(name: str) -> None:
    assert refused(request(workload=with_env(**{name: "v"}))).code == "invalid_env_name"


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "VOLT_JOB_ID"])
def test_what_the_cluster_sets_cannot_be_set(name: str) -> None:
    reason = refused(request(workload=with_env(**{name: "v"})))
    assert (reason.code, reason.seen) == ("reserved_env_name", name)


def test_a_refusal_never_repeats_a_value() -> None:
    for env in ({"TOKEN": "hunter2\0"}, {"RANK": "hunter2"}, {"1": "hunter2"}, {"A": "hunter2" * ENV_BYTES_MAX}):
        assert b"hunter2" not in encode(refused(request(workload=with_env(**env))))


REFUSED: list[tuple[RequestJob, str, str]] = [
    (request(count=0), "count_out_of_range", "count"),
    (request(count=-8), "count_out_of_range", "count"),
    (request(count=NODES_MAX * GPUS_PER_NODE_MAX + 1), "count_out_of_range", "count"),
    (request(count=10**40), "count_out_of_range", "count"),
    (request(count=8, nodes=0), "nodes_out_of_range", "nodes"),
    (request(count=4 * NODES_MAX, nodes=NODES_MAX + 1), "nodes_out_of_range", "nodes"),
    (request(count=8, nodes=3), "uneven_nodes", "nodes"),
    (request(count=257), "uneven_nodes", "count"),
    (request(count=2 * GPUS_PER_NODE_MAX, nodes=1), "too_many_gpus_per_node", "nodes"),
    (request(gpu="H101"), "unknown_gpu_model", "gpu"),
    (request(gpu="A100"), "ambiguous_gpu_model", "gpu"),
    (request(gpu=("h100-80gb", "nonsense")), "unknown_gpu_model", "gpu"),
    (request(gpu=()), "model_count_out_of_range", "gpu"),
    (request(gpu=("h100-80gb",) * (MODELS_MAX + 1)), "model_count_out_of_range", "gpu"),
    (request(cap_microusd=0), "price_out_of_range", "max_price_microusd_per_gpu_hour"),
    (request(cap_microusd=-USD), "price_out_of_range", "max_price_microusd_per_gpu_hour"),
    (
        request(cap_microusd=PRICE_MICROUSD_PER_GPU_HOUR_MAX + 1),
        "price_out_of_range",
        "max_price_microusd_per_gpu_hour",
    ),
    (request(duration_seconds=0), "duration_out_of_range", "max_duration_seconds"),
    (request(duration_seconds=DURATION_SECONDS_MAX + 1), "duration_out_of_range", "max_duration_seconds"),
    (request(workload=replace(run(), command=())), "no_command", "workload.command"),
    (request(workload=run("")), "no_command", "workload.command"),
    (request(workload=run("a\0b")), "invalid_argument", "workload.command"),
    (request(workload=run(*["a"] * (COMMAND_ARGS_MAX + 1))), "too_many_arguments", "workload.command"),
    (request(workload=run("a" * (COMMAND_BYTES_MAX + 1))), "command_too_large", "workload.command"),
    (request(workload=run("é" * (COMMAND_BYTES_MAX // 2 + 1))), "command_too_large", "workload.command"),
    (request(workload=with_env(A="v\0")), "invalid_env_value", "workload.env"),
    (request(workload=with_env(A="é" * (ENV_BYTES_MAX // 2))), "env_too_large", "workload.env"),
    (
        request(workload=with_env(**{f"A{number}": "" for number in range(ENV_VARS_MAX + 1)})),
        "too_many_env_vars",
        "workload.env",
    ),
    (request(workload=replace(run(), image="a" * (IMAGE_CHARS_MAX + 1))), "image_too_long", "workload.image"),
    (request(workload=replace(run(), processes_per_node=0)), "processes_out_of_range", "workload.processes_per_node"),
    (
        request(workload=replace(run(), processes_per_node=PROCESSES_PER_NODE_MAX + 1)),
        "processes_out_of_range",
        "workload.processes_per_node",
    ),
    (request(constraints=Constraints(regions=("EU",))), "invalid_region", "constraints.regions"),
    (request(constraints=Constraints(regions_denied=("",))), "invalid_region", "constraints.regions_denied"),
    (request(constraints=Constraints(regions=("eu\n",))), "invalid_region", "constraints.regions"),
    (
        request(constraints=Constraints(regions=tuple(f"r{n}" for n in range(REGIONS_MAX + 1)))),
        "too_many_regions",
        "constraints.regions",
    ),
    (
        request(constraints=Constraints(regions=("eu", "us"), regions_denied=("us",))),
        "contradictory_regions",
        "constraints.regions_denied",
    ),
    (request(constraints=Constraints(min_memory_mib=-1)), "memory_out_of_range", "constraints.min_memory_mib"),
    (request(constraints=Constraints(min_memory_mib=10**9)), "memory_out_of_range", "constraints.min_memory_mib"),
    (request(workload=run("\x01" * 20_000)), "request_too_large", "request"),
]


@pytest.mark.parametrize(("command", "code", "field"), REFUSED)
def test_a_request_out_of_bounds_is_refused_with_what_was_seen(command: RequestJob, code: str, field: str) -> None:
    reason = refused(command)
    assert (reason.code, reason.field) == (code, field)
    assert len(reason.seen) <= SEEN_CHARS_MAX
    assert 10 < len(reason.message) < 400


def test_a_request_at_its_bounds_is_taken_and_fits_into_an_event() -> None:
    workload = replace(
        run("a" * COMMAND_BYTES_MAX),
        env={"A": "v" * (ENV_BYTES_MAX - 1)},
        processes_per_node=PROCESSES_PER_NODE_MAX,
    )
    command = request(
        count=NODES_MAX * GPUS_PER_NODE_MAX,
        nodes=NODES_MAX,
        workload=workload,
        cap_microusd=PRICE_MICROUSD_PER_GPU_HOUR_MAX,
        duration_seconds=DURATION_SECONDS_MAX,
    )
    assert len(encode(admitted(command))) < MESSAGE_BYTES_MAX // 2
