"""The environment of a process: what torchrun and SLURM users know, exactly."""

from volt.contracts.clusters import Manifest, ManifestNode
from volt.contracts.jobs import Workload
from volt.contracts.nodes import DesiredLease
from volt_agent.launch import process_environment

MANIFEST = Manifest(
    job="job",
    generation=3,
    master_address="10.0.0.1",
    master_port=40123,
    world_size=10,
    nodes=(
        ManifestNode(node="n1", node_rank=0, address="10.0.0.1", processes=8, first_rank=0),
        ManifestNode(node="n2", node_rank=1, address="10.0.0.2", processes=2, first_rank=8),
    ),
)


def environment(local_rank: int = 0, node_rank: int = 1, env: dict[str, str] | None = None) -> dict[str, str]:
    desired = DesiredLease(
        lease="job-2",
        job="job",
        account="buyer",
        generation=3,
        phase="start",
        node_rank=node_rank,
        gpus=("GPU-a", "GPU-b"),
        processes=2,
        workload=Workload(command=("true",), env=env or {}),
        manifest=MANIFEST,
        grace_ms=1000,
    )
    return process_environment(
        desired, local_rank, base={"PATH": "/bin"}, manifest_path="/m.json", checkpoint_folder="/c"
    )


def test_every_process_knows_its_place() -> None:
    assert environment(local_rank=1) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "40123",
        "WORLD_SIZE": "10",
        "RANK": "9",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "VOLT_JOB_ID": "job",
        "VOLT_GENERATION": "3",
        "VOLT_MANIFEST": "/m.json",
        "VOLT_CHECKPOINT_DIR": "/c",
    }


def test_the_buyer_may_set_the_threads_but_not_the_place() -> None:
    made = environment(env={"OMP_NUM_THREADS": "4", "RANK": "77", "PATH": "/mine"})
    assert (made["OMP_NUM_THREADS"], made["RANK"], made["PATH"]) == ("4", "8", "/mine")


def test_a_variable_reaches_the_process_byte_for_byte() -> None:
    odd = "a b 'c' \"d\" = $e\nü "
    assert environment(env={"ODD": odd, "EMPTY": ""})["ODD"] == odd
