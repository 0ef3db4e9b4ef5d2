"""Settings of an agent, from the environment; `volt agent run` sets them from its flags."""

import re
from pathlib import Path
from typing import Literal

from volt.contracts.bids import GPUS_PER_BID_MAX, Gpu, Place
from volt.contracts.errors import Reason, Refused
from volt.runtime.settings import BusSettings

_DECLARED = re.compile(r"(\d{1,2})x(\S{1,64})")


class Settings(BusSettings, frozen=True, kw_only=True):
    """One node: whose it is, what it offers, where it is."""

    account: str
    state: str
    """The folder that makes this node itself: its id, the generations it has seen, its workloads."""
    gpus: str = ""
    """Declared GPUs such as `8xh100-80gb`; empty: ask the NVIDIA driver."""
    price: int
    """Gross ask, micro-dollars per GPU-hour."""
    runtime: Literal["process"] = "process"
    checkpoints: str = ""
    """Where checkpoints are stored: `nats://host:port`, `s3://bucket/path` or `file:///folder`; empty: on the bus."""
    address: str = ""
    """The node's address on its fabric; empty: the one it reaches the bus from."""
    workdir: str = "."
    region: str = ""
    country: str = ""
    site: str = ""
    fabric: str = ""

    @property
    def place(self) -> Place:
        return Place(region=self.region, country=self.country, site=self.site, fabric=self.fabric)

    @property
    def checkpoints_url(self) -> str:
        return self.checkpoints or self.nats_url

    @property
    def state_folder(self) -> Path:
        return Path(self.state)


def declared_gpus(text: str, node: str) -> tuple[Gpu, ...]:
    """GPUs as declared by `COUNTxMODEL`. Raises Refused."""
    match = _DECLARED.fullmatch(text)
    count = int(match[1]) if match else 0
    if match is None or not 1 <= count <= GPUS_PER_BID_MAX:
        message = f"{text!r} declares no GPUs; write it like 8xh100-80gb, 1 to {GPUS_PER_BID_MAX} of them"
        raise Refused(Reason(code="invalid_gpus", message=message, field="gpus", seen=text))
    return tuple(Gpu(uuid=f"GPU-{node}-{index}", model=match[2]) for index in range(count))
