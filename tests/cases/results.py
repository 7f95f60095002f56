"""Results as outputs of KFP, artifacts, failures that may happen, retries, and searches."""

import json
from typing import Any, List, NamedTuple

from kfp import dsl
from torchx.specs import RetryPolicy

from tests.cases import case
from tests.cases.apps import argv, echo, python, record, shell
from torchx_kfp import Stages, hpo, publish_results
from torchx_kfp.tracking import FsspecResultTracker


@dsl.pipeline
def inner(tracker_base: str, rate: float, workspace: str = "") -> float:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    return stages.task(record("inside", f'{{"rate": {rate}}}'), results={"rate": float}).outputs["rate"]


@dsl.container_component
def collect(values: List[float], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf %s "$1" >"$0"', out, values])


@case(
    results={"use": argv("--uri", "s3://m/1", "2"), "after": argv("0.5")},
    stages={
        "first": {"accuracy": 0.75, "uri": "s3://m/1", "l2norm_mean": 2.0, "good": True},
        "never": "skipped",
        "collect": {"out": "[0.25,0.5]"},
    },
)
def in_conditions_arguments_fan_ins_and_nested_pipelines(tracker_base: str, rate: float = 0.5, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    first = stages.task(
        record("first", '{"accuracy": 0.75, "uri": "s3://m/1", "l2norm/mean": 2, "good": true}'),
        results={"accuracy": float, "uri": str, "l2norm/mean": float, "good": bool},
    )
    with dsl.If(first.outputs["accuracy"] >= 0.7), dsl.If(first.outputs["good"] == True):
        stages.task(echo("use", "--uri", f"{first.outputs['uri']}", f"{first.outputs['l2norm_mean']}"))
    with dsl.Else():
        stages.task(echo("never"))
    with dsl.ParallelFor([0.25, 0.5]) as item:
        trial = stages.task(record("trial", f'{{"x": {item}}}'), results={"x": float})
    collect(values=dsl.Collected(trial.outputs["x"]))
    nested = inner(tracker_base=tracker_base, rate=rate, workspace=workspace)
    stages.task(echo("after", f"{nested.output}"))


TRAIN = """
import sys
from torchx_kfp.tracking import current_run

run, rate = current_run(), float(sys.argv[1])
run.put({"l2norm/mean": rate / 3}, accuracy=0.8 + rate, uri=f"s3://models/{rate}", epochs=3, good=True,
        loss=float("nan"), seed=2**60 + 1)
with open(f"report-{rate}.html", "w") as file:
    file.write(f"<p>{rate}</p>")
run.add_artifact("model", f"s3://models/{rate}", framework="none", rates=[rate])
run.add_artifact("report", f"report-{rate}.html")
"""


class Outputs(NamedTuple):
    accuracy: float
    uri: str
    epochs: int
    good: bool
    l2norm_mean: float
    loss: float


def metrics_are_numbers_and_files_are_copied(result: Any) -> None:
    train = result["train"]
    assert train.artifacts["metrics"].metadata == {"l2norm/mean": 0.125 / 3, "accuracy": 0.925, "epochs": 3}
    with open(train.artifacts["report"].path) as file:
        assert file.read() == "<p>0.125</p>"


@case(
    outputs={
        "accuracy": 0.925,
        "uri": "s3://models/0.125",
        "epochs": 3,
        "good": True,
        "l2norm_mean": 0.125 / 3,
        "loss": 1.7976931348623157e308,
    },
    results={"use": argv("--accuracy=0.925", "s3://models/0.125", "3")},
    check=metrics_are_numbers_and_files_are_copied,
)
def as_outputs_of_every_type(tracker_base: str, rate: float = 0.125, workspace: str = "") -> Outputs:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    trained = stages.task(
        python("train", TRAIN, f"{rate}"),
        results={"accuracy": float, "uri": str, "epochs": int, "good": bool, "l2norm/mean": float, "loss": float},
        artifacts={"model": dsl.Model, "report": dsl.HTML},
    )
    words = [f"--accuracy={trained.outputs['accuracy']}", f"{trained.outputs['uri']}", f"{trained.outputs['epochs']}"]
    stages.task(echo("use", *words), results={"argv": str})
    return Outputs(**{name: trained.outputs[name] for name in Outputs._fields})


@case(packages=("torchx_kfp",), outputs={"Output": 0.5}, results={"use": argv("0.5")})
def published_by_the_package_in_the_image(tracker_base: str, workspace: str = "") -> float:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    trained = stages.task(record("train", '{"accuracy": 0.5}'), results={"accuracy": float}, inline=False)
    stages.task(echo("use", f"{trained.outputs['accuracy']}"), results={"argv": str}, inline=False)
    return trained.outputs["accuracy"]


@case(outputs={"Output": [0.925, 1.05, 1.3]})
def of_a_loop(tracker_base: str, workspace: str = "") -> List[float]:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor([0.125, 0.25, 0.5]) as rate:
        trained = stages.task(python("train", TRAIN, f"{rate}"), results={"accuracy": float})
    return dsl.Collected(trained.outputs["accuracy"])


WRITE = r"""
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
printf '{"lines": %d}' "$1" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
"""


@case(stages={"publish-count": {"lines": 4}}, missing="a folder as the tracker base")
def of_a_shell_are_published_by_another_stage(tracker_base: str):
    counted = Stages(tracker_base=tracker_base).task(shell("count", WRITE, "4"))
    publish_results(counted, {"lines": int}, image="python:3.11")


TRIALS = [
    {"lr": 0.1, "layers": 2, "act": "relu", "on": True, "sizes": [1.0, 2]},
    {"lr": 1e-05, "layers": 3, "act": "a b'\"$", "on": False, "sizes": []},
    {"lr": 1e22, "layers": 0, "act": "ü{}", "on": True, "sizes": [{"n": 0.5}]},
]
ASK = f"""
from torchx_kfp.tracking import current_run
run = current_run()
run.put(n=3)
run.add_metadata(trials={TRIALS!r}, settings={{"epochs": 3.0}})
"""
BEST = """
import json, sys
from torchx_kfp.tracking import current_run
run = current_run()
run.add_metadata(best=json.loads(sys.argv[1])[1])
run.put(trials=len(run.parents["trials"]))
"""


@case(
    stages={"ask": {"trials": TRIALS, "settings": {"epochs": 3.0}, "n": 3}, "best": {"best": TRIALS[1], "trials": 3}},
    results={
        "trial[0]": {**argv("0.1", "2", "relu", "true"), "variable": '[1,2] {"epochs":3}'},
        "trial[1]": {**argv("0.00001", "3", "a b'\"$", "false"), "variable": '[] {"epochs":3}'},
        "trial[2]": {**argv("10000000000000000000000", "0", "ü{}", "true"), "variable": '[{"n":0.5}] {"epochs":3}'},
    },
)
def a_list_drives_a_loop_and_its_fields_are_channels(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    declared: dict[str, Any] = {"trials": list, "settings": dict, "n": int}
    ask = stages.task(python("ask", ASK), results=declared)
    with dsl.ParallelFor(ask.outputs["trials"], parallelism=2) as x:
        variable = {"VARIABLE": f"{x.sizes} {ask.outputs['settings']}"}
        trial = stages.task(echo("trial", f"{x.lr}", f"{x.layers}", f"{x.act}", f"{x.on}", env=variable))
    best = python("best", BEST, f"{ask.outputs['trials']}")
    collected = dsl.Collected(trial.outputs["run_id"])
    stages.task(best, reads={"trials": collected}, results={"best": dict, "trials": int})


REGISTER = """
from torchx_kfp.tracking import current_run
run = current_run()
run.put(loss=1e-7)
run.add_artifact("model", "s3://models/7", rate=1e-7)
"""


@dsl.container_component
def show(model: dsl.Input[dsl.Model], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'cp "$0" "$1"', model.path, out])


SAVE = """
from torchx_kfp.tracking import current_run
with open("model.txt", "w") as file:
    file.write("weights")
current_run().add_artifact("model", "model.txt", layers=2)
current_run().put(loss=0.5)
"""


@case(outputs={"Output": "weights"})
def an_artifact(tracker_base: str, workspace: str = "") -> str:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    saved = stages.task(python("save", SAVE), artifacts={"model": dsl.Model})
    return show(model=saved.outputs["model"]).outputs["out"]


def names_its_place(result: Any) -> None:
    model = result["train"].artifacts["model"]
    assert model.location == "s3://models/7"
    assert model.uri.startswith(f"{result.folder}/{result['train'].pod_name}/")
    assert result["train"].artifacts["metrics"].metadata == {"loss": "1e-07"}
    assert result["train"].artifacts["metrics"].numeric_metadata == {"loss": 1e-7}


@case(
    outputs={"Output": json.dumps({"path": "s3://models/7", "metadata": {"rate": 1e-7}})},
    check=names_its_place,
)
def an_artifact_that_is_elsewhere(tracker_base: str, workspace: str = "") -> str:
    """What takes it gets a file that names its place: on a backend, to take one from other storage fails."""
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    train = stages.task(python("train", REGISTER), artifacts={"model": dsl.Model})
    return show(model=train.outputs["model"]).outputs["out"]


@case(results={"fails": {"before": 1, "exit_code": 3}, "code": argv("3")})
def a_failure_that_may_happen(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    code = "import sys; from torchx_kfp.tracking import current_run as run; run().put(before=1); sys.exit(3)"
    failed = stages.task(python("fails", code), may_fail=True, results={"exit_code": int})
    with dsl.If(failed.outputs["exit_code"] != 0):
        stages.task(echo("code", f"{failed.outputs['exit_code']}"))


@case(
    state="failed",
    stages={"last": "succeeded", "fails": "failed", "never": "not run"},
    reasons={"fails": ("ended with exit code 3",)},
)
def a_failure_ends_the_run(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ExitHandler(stages.task(echo("last"))):
        code = "import sys; from torchx_kfp.tracking import current_run as run; run().put(before=1); sys.exit(3)"
        failed = stages.task(python("fails", code), results={"before": int})
        stages.task(echo("never", f"{failed.outputs['before']}"), reads=failed)


#: Fails in the first attempt at this stage, and records something else in the second.
SECOND_TRY = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
second = run.id.endswith("_2")
run.put({"w": 2.5} if second else {"stale": 1})
sys.exit(0 if second else 3)
"""


def second_attempt(result: Any) -> None:
    stage = result["train"]
    assert (stage.attempts, stage.attempts_in_pod, stage.starts) == (1, 2, 2)
    assert str(stage.execution_id) == stage.outputs["run_id"] == f"{result.run_id}/train/train_1_2"
    assert "torchx-kfp: attempt 2 of 3: the application ended with exit code 3" in stage.log_file.read_text()
    assert result["read"].last_lines()[-1] == "{'w': 2.5}"
    assert FsspecResultTracker(stage.tracker_base).get(f"{result.run_id}/train/train_1") == {"stale": 1}


@case(
    results={"train": {"w": 2.5}, "plain": {"w": 2.5}},
    stages={"train": {"w": 2.5}},
    check=second_attempt,
)
def of_the_last_attempt(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    made = python("train", SECOND_TRY, max_retries=2, retry_policy=RetryPolicy.APPLICATION)
    train = stages.task(made, results={"w": float})
    code = "from torchx_kfp.tracking import current_run; print(current_run().parent.results())"
    stages.task(python("read", code), reads=train)
    stages.task(python("plain", SECOND_TRY, max_retries=1, retry_policy=RetryPolicy.REPLICA))


@case(results={"train": {"stale": 1, "exit_code": 3}})
def a_stage_that_may_fail_is_started_again_first(tracker_base: str, workspace: str = ""):
    code = "import sys; from torchx_kfp.tracking import current_run as run; run().put(stale=1); sys.exit(3)"
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    stages.task(python("train", code, max_retries=1), may_fail=True)


TRIAL = """
import sys
from torchx_kfp.tracking import current_run
current_run().put(loss=(float(sys.argv[1]) - 2) ** 2)
"""


@case(results={"search-best": {"loss": 0.0}})
def a_search(tracker_base: str, workspace: str = ""):
    hpo.search(
        lambda p: python("trial", TRIAL, f"{p.x}"),
        {"x": hpo.choice(1.0, 2.0, 4.0)},
        minimize="loss",
        optimizer="grid",
        tracker_base=tracker_base,
        workspace=workspace,
    )


REPLICA = """
import os
from torchx_kfp.tracking import current_run
if os.environ["TORCHX_REPLICA_ID"] == "0":
    current_run().put(replicas=2)
"""


@case(stages={"replica": {"replicas": 2}})
def of_two_replicas(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    stages.task(python("replica", REPLICA, num_replicas=2), engine="job", results={"replicas": int})


SECOND_FAILS = """
import os, sys, time
if os.environ["TORCHX_REPLICA_ID"] == "1":
    sys.exit(7)
time.sleep(30)
"""


@case(results={"replica": {"exit_code": 7}}, stages={"replica": {"exit_code": 7}})
def of_replicas_that_may_fail(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    app = python("replica", SECOND_FAILS, num_replicas=2)
    stages.task(app, engine="job", may_fail=True, results={"exit_code": int})
