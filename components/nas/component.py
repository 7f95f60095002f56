"""The TorchX component of an architecture search: one training of a network for scikit-learn's digits.

TorchX can also run it by itself: ``torchx run -s local_cwd components/nas/component.py:train --hidden_1 32``, given the
tracker's variables.
"""
# No `from __future__ import annotations`: TorchX reads the parameters' types from the function.

from torchx import specs

#: An image that has torchx-kfp and scikit-learn, and this repository as its working directory.
IMAGE = "torchx-kfp-examples:1"


def train(
    hidden_1: int = 32,
    hidden_2: int = 16,
    learning_rate: float = 0.003,
    decay: float = 0.0001,
    batch_size: int = 64,
    epochs: int = 8,
    budget: int = 20_000,
    image: str = IMAGE,
) -> specs.AppDef:
    """Trains a network with two hidden layers, and measures it on validation data.

    Args:
        hidden_1: units of the first hidden layer
        hidden_2: units of the second hidden layer
        learning_rate: the first step of Adam
        decay: weight of the L2 penalty
        batch_size: images in a step
        epochs: how often all images are seen
        budget: the most weights that the device can hold; the application fails with more
        image: image that holds the application
    """
    options = {
        "--hidden-1": hidden_1,
        "--hidden-2": hidden_2,
        "--learning-rate": learning_rate,
        "--decay": decay,
        "--batch-size": batch_size,
        "--epochs": epochs,
        "--budget": budget,
    }
    args = ["-m", "components.nas.train", *(f"{name}={value}" for name, value in options.items())]
    resource = specs.Resource(cpu=1, gpu=0, memMB=1024)
    return specs.AppDef("train", [specs.Role("train", image=image, entrypoint="python", args=args, resource=resource)])
