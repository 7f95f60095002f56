"""Trials on hand-written digits, which are also recorded as MLflow runs.

The applications in ``components/digits`` do not know MLflow: everything that they record with ``current_run()`` also
goes to MLflow. ``tracking_uri`` is MLflow's server; if it is empty, the variable ``MLFLOW_TRACKING_URI`` names it.
"""

from kfp import dsl

from components.digits import component as apps
from torchx_kfp import Stages


def in_experiment(app, name: str):
    """Set the experiment of the app's runs, with MLflow's own variable."""
    for role in app.roles:
        role.env["MLFLOW_EXPERIMENT_NAME"] = name
    return app


@dsl.pipeline(name="experiments", description="Trials on hand-written digits, as runs of MLflow")
def experiments(
    tracker_base: str,
    tracking_uri: str = "",
    weights: list = [0.1, 1.0, 10.0],  # noqa: B006 (a constant to KFP)
    workspace: str = "",
):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    recorded = stages.with_options(trackers={"mlflow": tracking_uri})

    prepared = stages.task(apps.prepare())
    with dsl.ParallelFor(weights) as weight:
        train = in_experiment(apps.train(weight, 0.03), "digits")
        trained = recorded.task(train, reads=prepared)
    recorded.task(in_experiment(apps.select(), "digits"), reads={"train": dsl.Collected(trained.outputs["run_id"])})
