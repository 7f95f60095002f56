"""Hand-written digits: prepare the data, train a model in each trial, select the best one, evaluate it, and deploy it
if it is good enough.

The stages find each other's results through the tracker: no stage gets a path of another stage's output::

    torchx-kfp run pipelines/digits.py --tracker-base demo-results/tracker -p threshold=0.98

The applications are in ``components/`` and need the extra ``examples``. On a cluster, they are in the image, or travel
with each run (``submit pipelines/digits.py --workspace .``), so that the image needs only their dependencies. Run a
compiled file locally in the folder that contains ``components/``, or add that folder to ``PYTHONPATH``.

``artifacts`` is the folder for data and models: a local one, or an fsspec URL such as ``s3://bucket/digits``. The
default is a folder next to the tracker base, with ``-artifacts`` added to its name.
"""

from kfp import dsl

from components.digits import component as apps
from components.echo.component import echo
from pipelines import trials
from torchx_kfp import Stages, task_from_app


@dsl.pipeline(name="digits", description="Trials on hand-written digits, and what becomes of the best one")
def digits(tracker_base: str, threshold: float = 0.95, artifacts: str = "", seed: int = 0, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)

    prepared = stages.task(apps.prepare(artifacts, seed))
    # The loop is in a nested pipeline because KFP's local runner replaces values that a loop reads from a task next to
    # it with the loop's item. KFP 2.16's runner also needs a condition or a loop at this level: otherwise, it does not
    # accept any in nested pipelines.
    trained = trials.trials(tracker_base=tracker_base, prepared=prepared.outputs["run_id"], workspace=workspace)
    selected = stages.task(apps.select(), reads={"train": trained.output}, results={"accuracy": float, "model": str})
    evaluated = stages.task(
        apps.evaluate(),
        reads=[prepared, selected],
        results={"test_accuracy": float},
        artifacts={"confusion": dsl.ClassificationMetrics, "report": dsl.Markdown},
    )
    with dsl.If(selected.outputs["accuracy"] >= threshold):
        # It also reads evaluate, so that it runs after it.
        stages.task(apps.deploy(threshold), reads=[selected, evaluated])
    with dsl.If(selected.outputs["accuracy"] < threshold):
        task_from_app(echo("Not good enough to be deployed."), name="keep")
