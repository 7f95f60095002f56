"""Decides how many resources a training on a table needs, in the form of Kubernetes: all of them are text."""

from __future__ import annotations

import argparse

from torchx_kfp.tracking import current_run

#: The bytes of a number, and how many copies of the table a training keeps.
_NUMBER, _COPIES = 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--columns", type=int, required=True)
    parser.add_argument("--image", required=True, help="the training's image; with a GPU, its tag ends in -gpu")
    args = parser.parse_args()

    megabytes = 256 + args.rows * args.columns * _NUMBER * _COPIES // 10**6
    large = megabytes > 8_000
    current_run().put(
        memory=f"{megabytes}M",
        cpu="4" if large else "1",
        gpus="1" if large else "0",
        image=f"{args.image}-gpu" if large else args.image,
    )
    print(f"{args.rows} rows of {args.columns} columns: {megabytes} MB, {'a GPU' if large else 'no GPU'}")


if __name__ == "__main__":
    main()
