"""Trains a support vector machine on the data of prepare, the stage that it reads.

Records the accuracy on the validation data, where the model is, and how long the training took; registers the model.
"""

from __future__ import annotations

import argparse
import time

import fsspec
import joblib
import numpy as np
from sklearn.svm import SVC

from torchx_kfp.tracking import current_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--C", type=float, required=True, help="weight of errors against the margin")
    parser.add_argument("--gamma", type=float, required=True, help="width of the kernel")
    args = parser.parse_args()
    run = current_run()

    prepared = run.parent.results()
    with fsspec.open(prepared["data"], "rb") as file:
        data = dict(np.load(file))

    started = time.perf_counter()
    model = SVC(C=args.C, gamma=args.gamma).fit(data["x_train"], data["y_train"])
    fit_seconds = time.perf_counter() - started
    accuracy = float(model.score(data["x_valid"], data["y_valid"]))

    model_url = f"{prepared['artifacts']}/{run.id}/model.joblib"
    with fsspec.open(model_url, "wb") as file:
        joblib.dump(model, file)

    run.add_artifact("model", model_url, framework="scikit-learn", C=args.C, gamma=args.gamma)
    # As results, they are in KFP's "Compare runs"; as metadata, they are parameters in MLflow.
    run.put(accuracy=accuracy, model=model_url, C=args.C, gamma=args.gamma, fit_seconds=fit_seconds)
    run.add_metadata(C=args.C, gamma=args.gamma)
    print(f"C={args.C} gamma={args.gamma}: accuracy {accuracy:.4f}, trained in {fit_seconds:.2f} s")


if __name__ == "__main__":
    main()
