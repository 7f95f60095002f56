"""A part of the digits pipeline: a training for each pair of hyperparameters, on data that another stage has prepared.

It can also run by itself, on the data of an earlier run: ``prepared`` is the execution id of that run's stage
``prepare``, which ``torchx-kfp show RUN/prepare`` prints::

    torchx-kfp run pipelines/trials.py --tracker-base demo-results/tracker -p prepared=digits-.../prepare/prepare_1
"""

from typing import List  # noqa: UP035 (KFP's name for the type)

from kfp import dsl

from components.digits import component as apps
from torchx_kfp import Stages

HYPERPARAMETERS = [
    {"C": 0.1, "gamma": 0.01},
    {"C": 1.0, "gamma": 0.01},
    {"C": 1.0, "gamma": 0.1},
    {"C": 10.0, "gamma": 0.01},
]


@dsl.pipeline(name="trials", description="One training for each pair of hyperparameters")
def trials(tracker_base: str, prepared: str, workspace: str = "") -> List[str]:  # noqa: UP006 (KFP's name for the type)
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor(HYPERPARAMETERS) as trial:
        trained = stages.task(
            apps.train(trial.C, trial.gamma),
            reads={"prepare": prepared},
            results={"accuracy": float},
            artifacts={"model": dsl.Model},
        )
    return dsl.Collected(trained.outputs["run_id"])
