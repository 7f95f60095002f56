"""Measures the model of select on the test data of prepare, which no stage has used before.

Registers the confusion matrix twice: as metadata, which KFP draws, and in a report for people.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fsspec
import joblib
import numpy as np
from sklearn.metrics import confusion_matrix

from torchx_kfp.tracking import current_run


def main() -> None:
    run = current_run()
    with fsspec.open(run.parents["prepare"].results()["data"], "rb") as file:
        data = dict(np.load(file))
    model_url = run.parents["select"].results()["model"]
    with fsspec.open(model_url, "rb") as file:
        model = joblib.load(file)

    predicted = model.predict(data["x_test"])
    test_accuracy = float((predicted == data["y_test"]).mean())
    matrix = confusion_matrix(data["y_test"], predicted, labels=range(10)).tolist()
    run.put(test_accuracy=test_accuracy, model=model_url)

    # The metadata of kfp.dsl.ClassificationMetrics.
    labels = [{"displayName": str(digit)} for digit in range(10)]
    run.add_artifact(
        "confusion", "", confusionMatrix={"annotationSpecs": labels, "rows": [{"row": row} for row in matrix]}
    )
    report = Path(tempfile.mkdtemp(), "report.md")
    report.write_text(describe(test_accuracy, matrix), encoding="utf-8")
    run.add_artifact("report", report, digits=10)
    print(f"Accuracy on the test data: {test_accuracy:.4f}")


def describe(test_accuracy: float, matrix: list[list[int]]) -> str:
    """Return a report in Markdown.

    Args:
        test_accuracy: the share of digits that were recognized.
        matrix: how often each digit (the row) was taken for each (the column).
    """
    header = ["", *(f"read as {digit}" for digit in range(len(matrix)))]
    rows = [header, ["---"] * len(header)]
    rows += [[f"**{digit}**", *map(str, row)] for digit, row in enumerate(matrix)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"# Digits\n\n{test_accuracy:.2%} of the test data were recognized.\n\n{table}\n"


if __name__ == "__main__":
    main()
