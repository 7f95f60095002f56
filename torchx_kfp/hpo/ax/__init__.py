"""Trials of an Ax experiment as TorchX apps, on any scheduler of TorchX, with outcomes from the tracker.

    from ax.api.client import Client
    from torchx_kfp.hpo.ax import TorchXMetric, TorchXRunner

    client.configure_runner(TorchXRunner(train, tracker_base="s3://bucket/search", scheduler="kubernetes"))
    client.configure_metrics([TorchXMetric("loss")])
    client.run_trials(max_trials=20, parallelism=4)

Importing this package teaches Ax to save and load both classes, in JSON files and in databases.

``runner``    ``TorchXRunner``: submits and watches the app of a trial
``metric``    ``TorchXMetric``: reads what it has recorded
``optimizer`` the optimizer ``ax`` of searches in pipelines
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

from torchx_kfp.common.extras import require

require("ax", __name__)

from torchx_kfp.hpo.ax.metric import TorchXMetric
from torchx_kfp.hpo.ax.runner import TorchXRunner

__all__ = ["TorchXMetric", "TorchXRunner"]
