"""Trains a small network on scikit-learn's hand-written digits, in as many processes as torchrun starts.

Each process computes the gradients of its share of a batch, and DistributedDataParallel averages them (on CPUs, with
gloo). Process 0 evaluates and records: the loss and the accuracy on the validation data, after each epoch and at the
end. Outside of a pipeline, it only prints::

    torchrun --nproc-per-node 2 -m components.ddp.train --epochs 5
    python -m components.ddp.train --checkpoints /tmp/checkpoints

A training that is started again continues from its last checkpoint, with the same result.
"""

from __future__ import annotations

import argparse
import io
import os
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from components.digits.prepare import folder_beside
from torchx_kfp.errors import NotInStageError
from torchx_kfp.tracking import Run, current_run

#: The images of a batch, which the processes share: their number hardly changes the result.
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.1, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data's split and order, and of the weights")
    parser.add_argument(
        "--checkpoints",
        default="",
        help="folder, or fsspec URL; empty: next to the tracker base, or no checkpoints outside of a pipeline",
    )
    args = parser.parse_args()

    join_group()
    # The network is too small for more, and results do not depend on the machine's cores.
    torch.set_num_threads(1)
    # A stage has one run, whatever the number of its processes. One of them records.
    run = find_run() if dist.get_rank() == 0 else None
    checkpoint = Checkpoint(args.checkpoints or folder_of(run), f"rate-{args.rate:g}-seed-{args.seed}.pt")
    train(args, checkpoint, run)
    dist.destroy_process_group()


def join_group() -> None:
    """Join the processes that torchrun has started, or make a group of this process."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def find_run() -> Run | None:
    """Return the run of this stage; None outside of a pipeline."""
    try:
        return current_run()
    except NotInStageError:
        return None


def folder_of(run: Run | None) -> str:
    """Return a folder that is the same whenever a stage of a pipeline run is tried again: its run id is not."""
    if run is None:
        return ""
    pipeline_run_and_stage, _, _ = run.id.rpartition("/")
    return f"{folder_beside(os.environ['TORCHX_TRACKER_BASE'], '--checkpoints')}/{pipeline_run_and_stage}"


def train(args: argparse.Namespace, checkpoint: Checkpoint, run: Run | None) -> None:
    """Train for the epochs that the checkpoint does not have yet."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    training, validation = load_data(args.seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=args.rate, momentum=0.9)

    first_epoch = 0
    state = read_by_one(checkpoint)
    if state is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epochs"]
        say(f"Continuing after epoch {first_epoch - 1}, from {checkpoint.url}")

    model = DistributedDataParallel(network)
    sampler = DistributedSampler(training, seed=args.seed)
    loader = DataLoader(training, batch_size=max(1, BATCH // processes), sampler=sampler)
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)  # an order of its own for each epoch, whether or not this process has trained before
        train_loss = train_epoch(model, loader, optimizer)
        if rank == 0:
            loss, accuracy = evaluate(network, validation)
            say(f"Epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.4f}")
            if run:
                run.log(epoch, loss=loss, accuracy=accuracy, train_loss=train_loss)
            # Each epoch is saved, and no signal handled: after SIGTERM, a stage on KFP often has only 0.2 seconds left.
            checkpoint.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1})

    if rank == 0:
        loss, accuracy = evaluate(network, validation)
        say(f"Trained in {processes} processes: loss {loss:.6f}, accuracy {accuracy:.4f}")
        if run:
            run.put(loss=loss, accuracy=accuracy, epochs=args.epochs, world_size=processes)


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the digits to train with, and those to validate with."""
    images, labels = load_digits(return_X_y=True)
    x_train, x_valid, y_train, y_valid = train_test_split(
        images / 16, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    training, validation = (
        TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        for x, y in ((x_train, y_train), (x_valid, y_valid))
    )
    return training, validation


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """Train with every image once. Return the mean loss of the batches of all processes."""
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


@torch.no_grad()
def evaluate(network: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Return the loss and the accuracy. One process evaluates, so it takes the network itself: DDP may wait for all."""
    images, labels = data.tensors
    scores = network(images)
    correct = scores.argmax(dim=1) == labels
    return nn.functional.cross_entropy(scores, labels).item(), correct.double().mean().item()


class Checkpoint:
    """A file of the training's state. Without a folder, nothing is saved."""

    def __init__(self, folder: str, name: str) -> None:
        self.url = f"{folder.rstrip('/')}/{name}" if folder else ""

    def read(self) -> dict[str, Any] | None:
        """Return the last state that was saved, or None."""
        if not self.url:
            return None
        filesystem, path = fsspec.core.url_to_fs(self.url)
        if not filesystem.exists(path):
            return None
        return torch.load(io.BytesIO(filesystem.cat_file(path)), weights_only=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state. Whenever the process is killed, the file is whole: the old one or the new one."""
        if not self.url:
            return
        content = io.BytesIO()
        torch.save(state, content)
        filesystem, path = fsspec.core.url_to_fs(self.url)
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{path}.new", content.getvalue())
        filesystem.mv(f"{path}.new", path)


def read_by_one(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the state that process 0 reads, in all processes: all of them must continue after the same epoch."""
    states = [checkpoint.read() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(states)
    return states[0]


def say(text: str) -> None:
    """Print in process 0, at once."""
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
