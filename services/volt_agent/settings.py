"""Settings of an agent, from the environment; `volt agent run` sets them from its flags."""

from pathlib import Path
from typing import Literal

from volt.contracts.bids import Gpu, Place
from volt.contracts.declared import parse_gpus
from volt.runtime.settings import BusSettings


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
    count, model = parse_gpus(text)
    return tuple(Gpu(uuid=f"GPU-{node}-{index}", model=model) for index in range(count))
