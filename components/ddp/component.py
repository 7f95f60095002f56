"""TorchX components of the DDP pipeline: a training in several replicas, and a stage that reads its loss.

TorchX can run the training by itself: ``torchx run -s local_cwd components/ddp/component.py:train --j 1x2``.
"""
# No `from __future__ import annotations`: TorchX reads the parameters' types from the functions.

from torchx import specs
from torchx.components import dist

#: An image that has torchx-kfp, scikit-learn and torch, and this repository as its working directory.
IMAGE = "torchx-kfp-examples-ddp:1"

# TorchX's nightly has this name for dist.ddp.
_torchrun = getattr(dist, "torchrun", None) or dist.ddp


def train(
    epochs: int = 20,
    rate: float = 0.1,
    seed: int = 0,
    checkpoints: str = "",
    j: str = "2x1",
    rdzv_port: int = 29500,
    image: str = IMAGE,
) -> specs.AppDef:
    """Trains a small network on scikit-learn's digits, in several processes.

    Args:
        epochs: how often it sees each image
        rate: the learning rate
        seed: seed of the data's split and order, and of the weights
        checkpoints: folder (local, or an fsspec URL) for checkpoints; empty: beside the tracker base
        j: {replicas}x{processes of each}
        rdzv_port: port of replica 0 at which the replicas meet
        image: image that holds the application
    """
    return _torchrun(
        f"--epochs={epochs}",
        f"--rate={rate}",
        f"--seed={seed}",
        f"--checkpoints={checkpoints}",
        m="components.ddp.train",
        name="train",
        image=image,
        cpu=1,
        memMB=1024,
        j=j,
        rdzv_port=rdzv_port,
    )


def report(bound: float, image: str = IMAGE) -> specs.AppDef:
    """Reports the loss of the training that it reads, and fails if it is not below a bound.

    Args:
        bound: the loss must be below it
        image: image that holds the application
    """
    role = specs.Role(
        name="report",
        image=image,
        entrypoint="python",
        args=["-m", "components.ddp.report", f"--bound={bound}"],
        resource=specs.Resource(cpu=1, gpu=0, memMB=256),
    )
    return specs.AppDef(name="report", roles=[role])
