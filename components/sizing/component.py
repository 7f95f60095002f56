"""A TorchX component that decides which resources the next stage gets: memory, CPUs, accelerators and an image."""
# No `from __future__ import annotations`: TorchX reads the parameters' types from the functions.

from torchx import specs

#: An image that has torchx-kfp, and this repository as its working directory.
IMAGE = "torchx-kfp-examples:1"


def size(rows: int, columns: int, image: str = IMAGE) -> specs.AppDef:
    """Decides how much of a machine a training on a table needs.

    Args:
        rows: rows of the table
        columns: columns of the table
        image: image that holds the application, and the training if it needs no GPU
    """
    args = ["-m", "components.sizing.size", f"--rows={rows}", f"--columns={columns}", f"--image={image}"]
    role = specs.Role(name="size", image=image, entrypoint="python", args=args)
    return specs.AppDef(name="size", roles=[role])
