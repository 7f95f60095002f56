"""Stages that read what earlier stages have recorded, through run ids that KFP hands on."""

import json

from kfp import components, dsl

from tests.cases import case
from tests.cases.apps import argv, echo, python, read, record, shell
from torchx_kfp import Stages, component_from_app, component_spec_from_app
from torchx_kfp.tracking import FsspecResultTracker

RESULTS = {"number": 0.25, "count": 3, "text": "a, 'b' \"c\" $HOME {{x}} ü", "flag": True}

#: Compares what it reads with what KFP hands on.
SECOND = f"""
import sys
from torchx_kfp.tracking import current_run
found = dict(current_run().parent.results())
assert found == {RESULTS!r}, found
assert (float(sys.argv[1]), sys.argv[2]) == (found["number"], found["text"]), sys.argv
current_run().put(double=2 * found["number"], letters=len(found["text"]))
"""


@case(results={"second": {"double": 0.5, "letters": 24}}, stages={"never": "skipped"})
def results_reach_the_next_stage(tracker_base: str, workspace: str = "") -> float:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    code = f"from torchx_kfp.tracking import current_run as run; run().put({RESULTS!r})"
    first = stages.task(python("first", code), results={"number": float, "text": str, "flag": bool})
    with dsl.If(first.outputs["flag"] == True):
        second = python("second", SECOND, f"{first.outputs['number']}", f"{first.outputs['text']}")
        stages.task(second, reads=first)
    with dsl.Else():
        stages.task(echo("never"))
    return first.outputs["number"]


@case(
    results={
        "read": read(trials=[f"{letter}{number}" for letter in "cab" for number in (1, 2)], listed=["2", "1"], one="1")
    }
)
def fan_ins(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor(["c", "a", "b"]) as letter, dsl.ParallelFor([1, 2]) as number:
        trial = stages.task(echo("trial", f"{letter}{number}"))
    one, two = stages.task(echo("one", "1")), stages.task(echo("two", "2"))
    collected = dsl.Collected(trial.outputs["run_id"])
    stages.task(echo("read"), reads={"trials": collected, "listed": [two, one], "one": one})


def took(branch: str):
    """Return a check that the argument of ``read`` is the run id of this stage."""

    def check(result):
        (run_id,) = json.loads(result["read"].results["argv"])
        assert run_id.split("/")[1] == branch

    return check


@case(arguments={"mode": "a"}, results={"read": read(either="left")}, check=took("left"), varying={"argv"})
@case("other", arguments={"mode": "b"}, results={"read": read(either="right")}, check=took("right"), varying={"argv"})
def one_of_two_branches(tracker_base: str, mode: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.If(mode == "a"):
        left = stages.task(echo("left", "left"))
    with dsl.Else():
        right = stages.task(echo("right", "right"))
    either = dsl.OneOf(left.outputs["run_id"], right.outputs["run_id"])
    stages.task(echo("read", either), reads={"either": either})


@dsl.pipeline
def same(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(echo("stage", "same"))


def each_has_its_own(result):
    run_ids = {str(stage.execution_id) for stage in result.stages}
    assert len(run_ids) == len(result.stages) == 7
    assert all(run_id.startswith(f"{result.run_id}/stage/") for run_id in run_ids)
    assert sorted(FsspecResultTracker(result.stages[0].tracker_base).keys()) == sorted(run_ids)


@case(check=each_has_its_own)
def run_ids_of_every_execution(tracker_base: str, workspace: str = ""):
    same(tracker_base=tracker_base, workspace=workspace)
    same(tracker_base=tracker_base, workspace=workspace)
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor([1, 2]), dsl.ParallelFor([1, 2]):
        stages.task(echo("stage", "same"))
    stages.task(echo("stage", "same"))


train = component_from_app(echo("train", "$$", "{{workflow.name}}"), tracked=True)
load = components.load_component_from_text(component_spec_from_app(echo("read"), reads=["model"]))


@case(
    results={
        "train": argv("$$", "{{workflow.name}}"),
        "read/read-stage": {"read": json.dumps({"model": json.dumps(["$$", "{{workflow.name}}"])})},
        "last": {"read": json.dumps({"read": "[]", "train": json.dumps(["$$", "{{workflow.name}}"])})},
    },
    missing="an image with torchx-kfp: a component takes no workspace",
)
def components_and_component_files(tracker_base: str):
    model = train(tracker_base=tracker_base)
    again = load(tracker_base=tracker_base, model=model.outputs["run_id"])
    Stages(tracker_base=tracker_base).task(echo("last"), reads=[again, model])


@case(
    state="failed",
    results={"train": {"before": 1}},
    stages={"train": "failed", "read": "not run"},
    reasons={"train": ("signal 9 (SIGKILL)",)},
)
def what_a_failed_stage_recorded_stays(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    failed = stages.task(record("train", '{"before": 1}', "kill -9 $PPID"))
    stages.task(echo("read"), reads=failed)


TORCHX = """
import os, warnings; warnings.simplefilter("ignore")
from torchx.runtime.tracking import FsspecResultTracker
tracker = FsspecResultTracker(os.environ["TORCHX_TRACKER_BASE"])
loss = tracker[os.environ["TORCHX_PARENT_RUN_ID"]]["loss"] if "TORCHX_PARENT_RUN_ID" in os.environ else 1.0
tracker[os.environ["TORCHX_JOB_ID"]] = {"loss": loss / 2}
"""


@case(results={"third": {"loss": 0.125}}, packages=("torchx",))
def an_application_that_knows_only_torchx(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    first = stages.task(python("first", TORCHX))
    second = stages.task(python("second", TORCHX), reads=first)
    stages.task(python("third", TORCHX), reads=second)


#: Adds one to the result of the stage before it, in a shell.
NEXT = (
    'mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"; n=0; [ -z "$TORCHX_PARENT_RUN_ID" ] || '
    'n=$(sed "s/[^0-9]//g" "$TORCHX_TRACKER_BASE/$TORCHX_PARENT_RUN_ID"); '
    'printf "{\\"n\\": %d}" $((n + 1)) >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"'
)


@case(results={"stage-99": {"n": 100}}, missing="a folder as the tracker base")
def a_hundred_stages_in_a_chain(tracker_base: str):
    previous = None
    for number in range(100):
        previous = Stages(tracker_base=tracker_base).task(shell(f"stage-{number}", NEXT), reads=previous)
