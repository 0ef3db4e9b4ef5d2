"""What the monitor says of a node whose GPUs fail."""

from volt.contracts import nodes
from volt.contracts.faults import Fault

FAULT = Fault(kind="xid", xid=48, name="ROBUST_CHANNEL_GPU_ECC_DBE", number=1)


def quarantined(account: str, node: str, *gpus: str, at_ms: int) -> nodes.GpuQuarantined:
    return nodes.GpuQuarantined(
        account=account, node=node, incarnation="i1", at_ms=at_ms, gpus=gpus, fault=FAULT, reliability_permille=930
    )


def closed(account: str, node: str, *gpus: str, at_ms: int) -> nodes.NodeQuarantined:
    fault = Fault(kind="vanished", name="the driver no longer lists it")
    return nodes.NodeQuarantined(
        account=account, node=node, incarnation="i1", at_ms=at_ms, gpus=gpus, fault=fault, reliability_permille=870
    )


def recovered(account: str, node: str, *gpus: str, at_ms: int) -> nodes.QuarantineEnded:
    return nodes.QuarantineEnded(account=account, node=node, incarnation="i2", at_ms=at_ms, gpus=gpus)


def faults(account: str, node: str, at_ms: int) -> list[nodes.NodeEvent]:
    """Everything that can be said of them, and all is well again at the end."""
    gpu = f"GPU-{node}-0"
    faulted = nodes.GpuFaulted(
        account=account, node=node, incarnation="i1", at_ms=at_ms, gpus=(gpu,), fault=FAULT, reliability_permille=990
    )
    return [
        faulted,
        quarantined(account, node, gpu, at_ms=at_ms),
        closed(account, node, gpu, at_ms=at_ms),
        nodes.NodeAlive(account=account, node=node, incarnation="i2", at_ms=at_ms, reliability_permille=870),
        recovered(account, node, gpu, at_ms=at_ms),
        nodes.NodeRated(account=account, node=node, incarnation="i2", at_ms=at_ms, reliability_permille=890),
    ]
