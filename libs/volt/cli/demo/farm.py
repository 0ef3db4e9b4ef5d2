"""Five nodes of two operators on two fabrics, each an agent of its own on this machine."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from volt.embedded import Child
from volt.embedded.supervisor import python_module

GPUS = "8xh100-80gb"


@dataclass(frozen=True)
class Site:
    """One node as its operator declares it. The ask is micro-dollars per GPU-hour."""

    name: str
    operator: str
    fabric: str
    ask_microusd_per_gpu_hour: int


SITES = (
    Site("node-1", "north", "A", 1_850_000),
    Site("node-2", "north", "A", 1_900_000),
    Site("node-3", "south", "A", 1_990_000),
    Site("node-4", "south", "B", 1_950_000),
    Site("node-5", "north", "B", 2_100_000),
)


@dataclass(frozen=True)
class Node:
    """A running agent and the state folder that makes it one node."""

    site: Site
    child: Child
    state: Path

    @property
    def id(self) -> str:
        file = self.state / "node"
        return file.read_text().strip() if file.exists() else ""


async def start_nodes(
    folder: Path, nats_url: str, accounts: Mapping[str, str], sites: Sequence[Site] = SITES, checkpoints_url: str = ""
) -> list[Node]:
    """Starts an agent for each site. `accounts` gives each operator's account; without a URL checkpoints are stored on
    the bus."""
    nodes = []
    workdir = folder / "work"
    workdir.mkdir(parents=True)
    for site in sites:
        state = folder / site.name
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "VOLT_NATS_URL": nats_url,
            "VOLT_CHECKPOINTS": checkpoints_url,
            "VOLT_ACCOUNT": accounts[site.operator],
            "VOLT_STATE": str(state),
            "VOLT_GPUS": GPUS,
            "VOLT_PRICE": str(site.ask_microusd_per_gpu_hour),
            "VOLT_FABRIC": site.fabric,
            "VOLT_REGION": "eu",
            "VOLT_WORKDIR": str(workdir),
        }
        child = Child(site.name, python_module("volt_agent"), environment, folder, folder / f"{site.name}.log")
        await child.start({}, [])
        nodes.append(Node(site, child, state))
    return nodes


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and everything below it, the top first, as when a machine loses its power."""
    for one in [pid, *descendants(pid)]:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, parents before children."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found, level = [], [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(folder.name), int(stat.rpartition(")")[2].split()[1])
