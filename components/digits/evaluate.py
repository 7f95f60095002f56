"""Measures the model of select on the test data of prepare, which no stage has used before."""

from __future__ import annotations

import fsspec
import joblib
import numpy as np

from torchx_kfp.tracking import current_run


def main() -> None:
    run = current_run()
    with fsspec.open(run.parents["prepare"].results()["data"], "rb") as file:
        data = dict(np.load(file))
    model_url = run.parents["select"].results()["model"]
    with fsspec.open(model_url, "rb") as file:
        model = joblib.load(file)

    test_accuracy = float(model.score(data["x_test"], data["y_test"]))
    run.put(test_accuracy=test_accuracy, model=model_url)
    print(f"Accuracy on the test data: {test_accuracy:.4f}")


if __name__ == "__main__":
    main()
