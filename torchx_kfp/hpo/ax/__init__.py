"""Trials of an Ax experiment as TorchX apps, on any scheduler of TorchX, with outcomes from the tracker.

    from ax.api.client import Client
    from torchx_kfp.hpo.ax import TorchXMetric, TorchXRunner

    client.configure_runner(TorchXRunner(train, tracker_base="s3://bucket/search", scheduler="kubernetes"))
    client.configure_metrics([TorchXMetric("loss")])
    client.run_trials(max_trials=20, parallelism=4)

Importing this package teaches Ax to save and load both classes, in JSON files and in databases.

``library``     all that this project uses of Ax
``experiments`` ``TorchXRunner`` and ``TorchXMetric``
``apps``        submits and watches the app of a trial, and reads its results
``optimizer``   the optimizer ``ax`` of searches in pipelines

Arguments, components and results that Ax cannot use raise ``TrialError``; a store that fails raises ``TrackerError``.
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

from torchx_kfp.common.extras import require

require("ax", __name__)

from torchx_kfp.hpo.ax.experiments import TorchXMetric, TorchXRunner

__all__ = ["TorchXMetric", "TorchXRunner"]
