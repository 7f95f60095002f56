"""Trains a network with two hidden layers on scikit-learn's hand-written digits.

Records the accuracy on validation data, ``val_acc``, and the number of weights, ``num_params``; logs the accuracy after
each epoch.
"""

from __future__ import annotations

import argparse
import itertools
import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from torchx_kfp.tracking import current_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden-1", type=int, required=True, help="units of the first hidden layer")
    parser.add_argument("--hidden-2", type=int, required=True, help="units of the second hidden layer")
    parser.add_argument("--learning-rate", type=float, required=True, help="the first step of Adam")
    parser.add_argument("--decay", type=float, required=True, help="weight of the L2 penalty")
    parser.add_argument("--batch-size", type=int, required=True, help="images in a step")
    parser.add_argument("--epochs", type=int, required=True, help="how often all images are seen")
    parser.add_argument("--budget", type=int, required=True, help="the most weights that the device can hold")
    args = parser.parse_args()
    run = current_run()

    images, labels = load_digits(return_X_y=True)
    sizes = [images.shape[1], args.hidden_1, args.hidden_2, 10]
    weights = sum((before + 1) * after for before, after in itertools.pairwise(sizes))
    if weights > args.budget:
        sys.exit(f"{weights:,} weights do not fit: the device holds {args.budget:,}")

    x_train, x_valid, y_train, y_valid = train_test_split(
        images / 16, labels, test_size=0.25, random_state=0, stratify=labels
    )
    model = MLPClassifier(
        (args.hidden_1, args.hidden_2),
        learning_rate_init=args.learning_rate,
        alpha=args.decay,
        batch_size=args.batch_size,
        random_state=0,
    )
    for epoch in range(1, args.epochs + 1):
        model.partial_fit(x_train, y_train, classes=range(10))
        accuracy = float(model.score(x_valid, y_valid))
        run.log(epoch, val_acc=accuracy)
    run.put(val_acc=accuracy, num_params=weights)
    print(f"{weights:,} weights: accuracy {accuracy:.4f} after {args.epochs} epochs")


if __name__ == "__main__":
    main()
