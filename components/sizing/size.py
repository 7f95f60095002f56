"""Decides how many resources a training on a table needs, in the form of Kubernetes: all of them are text."""

from __future__ import annotations

from typing import TypedDict

#: The bytes of a number, and how many copies of the table a training keeps.
_NUMBER, _COPIES = 8, 3


class Size(TypedDict):
    """The results, which are outputs of the stage. With a GPU, the image's tag ends in ``-gpu``."""

    memory: str
    cpu: str
    gpus: str
    image: str


def size(rows: int, columns: int, training: str) -> Size:
    """Return how much of a machine a training on a table needs.

    Args:
        rows: rows of the table
        columns: columns of the table
        training: the training's image if it needs no GPU
    """
    megabytes = 256 + rows * columns * _NUMBER * _COPIES // 10**6
    large = megabytes > 8_000
    print(f"{rows} rows of {columns} columns: {megabytes} MB, {'a GPU' if large else 'no GPU'}")
    return {
        "memory": f"{megabytes}M",
        "cpu": "4" if large else "1",
        "gpus": "1" if large else "0",
        "image": f"{training}-gpu" if large else training,
    }
