"""Data-parallel training in plain Python and numpy. Run it alone, by hand on two terminals, or on VOLT, unchanged.

    python examples/train.py
    WORLD_SIZE=2 RANK=0 python examples/train.py &  WORLD_SIZE=2 RANK=1 python examples/train.py

It reads what torchrun and SLURM users know: MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. Every rank learns from
its own shard of the data; after each step the ranks average their gradients, so all of them hold the same model.

With a folder in VOLT_CHECKPOINT_DIR one process of each node writes a checkpoint there every few steps, and all begin
again from the newest: which rows a step learns from depends on nothing but the step, so the end is the same.
"""

import argparse
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# The ranks are the parallelism, so that each needs one thread; numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
ROWS, FEATURES, HIDDEN = 4096, 16, 32
RENDEZVOUS_SECONDS_MAX = 30.0  # Ranks start at slightly different times.
CONNECT_PAUSE_SECONDS = 0.1
PEER_SECONDS_MAX = 120.0  # A peer that says nothing for so long is lost.


def main() -> int:
    args = parse_arguments()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    told = {name: os.environ.get(name, "") for name in ("LOCAL_RANK", "VOLT_JOB_ID", "VOLT_GENERATION")}
    print(f"rank {rank} of {world} starts:", *(f"{name}={value}" for name, value in told.items()), flush=True)
    try:
        loss = train(Gang.form(rank, world), args)
    except OSError as error:
        print(f"rank {rank} stops: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"rank {rank} done after {args.steps} steps, final loss {loss:.9f}", flush=True)
    return 0


@dataclass(frozen=True)
class Arguments:
    steps: int
    batch: int
    lr: float
    step_seconds: float
    checkpoint_every: int
    seed: int


def parse_arguments() -> Arguments:
    parser = argparse.ArgumentParser(description="Train a small network, data-parallel.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="rows per rank and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="pretend that a step takes so much longer")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    return Arguments(**vars(parser.parse_args()))


def train(gang: "Gang", args: Arguments) -> float:
    """Train for the given steps and return the last loss, the same on every rank."""
    inputs, targets = make_dataset(args.seed)
    mine = np.arange(gang.rank, ROWS, gang.world)  # This rank's shard.
    loss = float("nan")
    checkpoints = Checkpoints.from_environment(args.checkpoint_every)
    done, weights = checkpoints.newest() or (0, new_weights(args.seed))
    if done:
        print(f"rank {gang.rank} goes on from step {done}", flush=True)
    for step in range(done + 1, args.steps + 1):
        rows = np.random.default_rng([args.seed, gang.rank, step]).choice(mine, size=args.batch)
        time.sleep(args.step_seconds)
        mean = gang.mean(loss_and_gradient(weights, inputs[rows], targets[rows]))
        loss = float(mean[0])
        weights -= args.lr * mean[1:]
        if gang.rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        checkpoints.offer(step, weights)
    return loss


@dataclass(frozen=True)
class Checkpoints:
    """A folder for each step, which has its name only once it is whole. Without a root there are none."""

    root: Path | None
    every: int
    is_writer: bool

    @classmethod
    def from_environment(cls, every: int) -> "Checkpoints":
        root = os.environ.get("VOLT_CHECKPOINT_DIR")
        return cls(Path(root) if root else None, every, is_writer=os.environ.get("LOCAL_RANK", "0") == "0")

    def newest(self) -> tuple[int, Vector] | None:
        """The last step that is there, and the weights after it."""
        if self.root is None:
            return None
        steps = [int(folder.name) for folder in self.root.glob("*") if folder.name.isdecimal()]
        return (max(steps), np.load(self.root / str(max(steps)) / "weights.npy")) if steps else None

    def offer(self, step: int, weights: Vector) -> None:
        """Write a checkpoint if it is this process's turn: under another name, then renamed, so never half of one."""
        if self.root is None or not self.is_writer or step % self.every:
            return
        draft = self.root / f"{step}.tmp"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        np.save(draft / "weights.npy", weights)
        draft.rename(self.root / str(step))


def make_dataset(seed: int) -> tuple[Vector, Vector]:
    """Return (ROWS, FEATURES) inputs and the (ROWS,) answers of a hidden teacher, scaled to variance 1."""
    draws = np.random.default_rng(seed)
    inputs = draws.standard_normal((ROWS, FEATURES))
    answers = np.sin(inputs @ draws.standard_normal(FEATURES) / 4) + inputs[:, 0]
    return inputs, (answers - answers.mean()) / answers.std()


def new_weights(seed: int) -> Vector:
    """Return all weights of a network of one hidden layer as one vector, which is what the ranks agree on."""
    draws = np.random.default_rng(seed + 1)
    first, second = draws.standard_normal(FEATURES * HIDDEN), draws.standard_normal(HIDDEN)
    return np.concatenate([first / FEATURES**0.5, second / HIDDEN**0.5])


def loss_and_gradient(weights: Vector, inputs: Vector, targets: Vector) -> Vector:
    """Return one vector: the mean squared error, then its gradient by every weight."""
    first, second = weights[:-HIDDEN].reshape(FEATURES, HIDDEN), weights[-HIDDEN:]
    hidden = np.tanh(inputs @ first)
    error = hidden @ second - targets
    slope = 2 * error / len(targets)
    by_first = inputs.T @ (np.outer(slope, second) * (1 - hidden**2))
    return np.concatenate([[np.mean(error**2)], by_first.ravel(), hidden.T @ slope])


@dataclass(frozen=True)
class Gang:
    """All ranks, joined as a star: rank 0 holds a connection to every other rank, and each of them one to rank 0."""

    rank: int
    world: int
    peers: list["Peer"]

    @classmethod
    def form(cls, rank: int, world: int) -> "Gang":
        """Meet the other ranks at MASTER_ADDR and MASTER_PORT. Raises OSError when some do not come in time."""
        master = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
        return cls(rank, world, await_ranks(master, world) if rank == 0 else [join_head(master, rank)])

    def mean(self, mine: Vector) -> Vector:
        """Average a vector over all ranks. Rank 0 alone sums, in the order of ranks, so all get the same bits."""
        if self.rank > 0:
            self.peers[0].send(mine.tobytes())
            return np.frombuffer(self.peers[0].receive(mine.nbytes))
        total = mine.copy()
        for peer in self.peers:
            total += np.frombuffer(peer.receive(mine.nbytes))
        total /= self.world
        for peer in self.peers:
            peer.send(total.tobytes())
        return total


class Peer:
    """A connection to another rank. A message is its length in eight bytes, then that many bytes."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(PEER_SECONDS_MAX)
        self.rank, self.connection, self.incoming = rank, connection, connection.makefile("rb")

    def send(self, message: bytes) -> None:
        with naming(self.rank):
            self.connection.sendall(len(message).to_bytes(8, "big") + message)

    def receive(self, size: int) -> bytes:
        with naming(self.rank):
            message = self.incoming.read(8 + size)
            if len(message) < 8 + size:
                raise ConnectionError("it closed the connection")
            if message[:8] != size.to_bytes(8, "big"):
                raise ConnectionError(f"its message is not of the {size} bytes that are due")
            return message[8:]


def await_ranks(master: tuple[str, int], world: int) -> list[Peer]:
    """Listen, as rank 0, until every other rank has connected and said which it is."""
    peers: dict[int, Peer] = {}
    if world == 1:
        return []
    deadline = time.monotonic() + RENDEZVOUS_SECONDS_MAX
    with socket.create_server(master, backlog=world) as server:
        while len(peers) < world - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                peer = Peer(-1, server.accept()[0])
            except TimeoutError:
                raise TimeoutError(f"only {len(peers) + 1} of {world} ranks came to {master}") from None
            peer.rank = int.from_bytes(peer.receive(8), "big")
            peers[peer.rank] = peer
    return [peers[rank] for rank in sorted(peers)]


def join_head(master: tuple[str, int], rank: int) -> Peer:
    """Connect to rank 0, which may not listen yet, and say which rank this is."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS_MAX
    while True:
        try:
            head = Peer(0, socket.create_connection(master, timeout=RENDEZVOUS_SECONDS_MAX))
            head.send(rank.to_bytes(8, "big"))
            return head
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"no rank 0 at {master}: {error}") from error
            time.sleep(CONNECT_PAUSE_SECONDS)


@contextmanager
def naming(rank: int) -> Iterator[None]:
    """Say in every error of a connection which rank is lost."""
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"lost rank {rank}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
