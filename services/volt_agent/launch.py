"""How a workload's processes are started, in the environment that torchrun or SLURM users know and nothing else."""

import os
from collections.abc import Mapping
from pathlib import Path

from volt.contracts.messages import encode
from volt.contracts.nodes import DesiredLease
from volt_agent.runtimes import Launch


def launches_of(desired: DesiredLease, folder: Path, checkpoints: Path, workdir: str) -> tuple[Launch, ...]:
    """How each process of a lease is started; its manifest is written into the job's folder."""
    assert desired.manifest is not None, "a lease starts with its manifest"
    manifest = folder / f"manifest-{desired.generation}.json"
    manifest.write_bytes(encode(desired.manifest))
    base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LANG": "C.UTF-8"}
    return tuple(
        Launch(
            argv=desired.workload.command,
            env=process_environment(
                desired, rank, base=base, manifest_path=str(manifest), checkpoint_folder=str(checkpoints)
            ),
            cwd=str(Path(workdir).resolve()),
        )
        for rank in range(desired.processes)
    )


def process_environment(
    desired: DesiredLease, local_rank: int, *, base: Mapping[str, str], manifest_path: str, checkpoint_folder: str
) -> dict[str, str]:
    """The whole environment of one process. The buyer's variables override `base`, never the cluster's own.

    As torchrun does, OMP_NUM_THREADS is 1 where several processes share a node, unless the buyer sets it.
    """
    manifest = desired.manifest
    assert manifest is not None, "a lease starts with its manifest"
    place = next(node for node in manifest.nodes if node.node_rank == desired.node_rank)
    several = {"OMP_NUM_THREADS": "1"} if place.processes > 1 else {}
    cluster = {
        "MASTER_ADDR": manifest.master_address,
        "MASTER_PORT": str(manifest.master_port),
        "WORLD_SIZE": str(manifest.world_size),
        "RANK": str(place.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(place.processes),
        "NODE_RANK": str(desired.node_rank),
        "CUDA_VISIBLE_DEVICES": ",".join(desired.gpus),
        "VOLT_JOB_ID": desired.job,
        "VOLT_GENERATION": str(desired.generation),
        "VOLT_MANIFEST": manifest_path,
        "VOLT_CHECKPOINT_DIR": checkpoint_folder,
    }
    return {**base, **several, **desired.workload.env, **cluster}
