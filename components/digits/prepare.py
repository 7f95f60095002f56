"""Splits scikit-learn's hand-written digits into training, validation and test data.

Records where the data is, where models are to be stored, and the sizes of the parts.
"""

from __future__ import annotations

import argparse
import os
import sys

import fsspec
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchx_kfp.tracking import current_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", default="", help="folder for data and models; empty: next to the tracker base")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run = current_run()

    images, labels = load_digits(return_X_y=True)
    x_train, x_rest, y_train, y_rest = train_test_split(
        images / 16, labels, test_size=0.4, random_state=args.seed, stratify=labels
    )
    x_valid, x_test, y_valid, y_test = train_test_split(
        x_rest, y_rest, test_size=0.5, random_state=args.seed, stratify=y_rest
    )

    folder = args.artifacts or folder_beside(os.environ["TORCHX_TRACKER_BASE"], "--artifacts")
    filesystem, path = fsspec.core.url_to_fs(folder)
    artifacts = filesystem.unstrip_protocol(path)  # a URL that is valid in any working directory
    data = f"{artifacts}/{run.id}/digits.npz"
    with fsspec.open(data, "wb") as file:
        np.savez(file, x_train=x_train, y_train=y_train, x_valid=x_valid, y_valid=y_valid, x_test=x_test, y_test=y_test)

    run.put(data=data, artifacts=artifacts, train_size=len(y_train), valid_size=len(y_valid), test_size=len(y_test))
    print(f"{len(y_train)} images to train, {len(y_valid)} to validate and {len(y_test)} to test: {data}")


def folder_beside(tracker_base: str, option: str) -> str:
    """Return a folder next to the tracker base, not below it, where every file would be taken for results.

    Args:
        tracker_base: a directory or an fsspec URL.
        option: the option that names another folder, for the message if there is no folder next to the tracker base.
    """
    base = tracker_base.rstrip("/")
    _, is_url, folder = base.rpartition("://")
    if not folder or (is_url and "/" not in folder):
        sys.exit(f"There is no folder next to the tracker base {tracker_base!r}: name one for its files with {option}")
    return f"{base}-artifacts"


if __name__ == "__main__":
    main()
