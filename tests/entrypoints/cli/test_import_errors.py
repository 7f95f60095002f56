"""Mistakes in a pipeline file: each has a sentence with its place, the value and the way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call

pytestmark = pytest.mark.versions

# The lines of messages are as long as they are.
# ruff: noqa: E501
FILE = """
import functools
from kfp import dsl
from torchx.components import dist, utils
from torchx.specs import AppDef, Role
import torchx_kfp.hpo
from torchx_kfp import engines, publish_results, task_from_app

def app(name="train", **fields):
    return AppDef(name, [Role(name, image="i", entrypoint="python", args=["-m", "app"], **fields)])

@dsl.container_component
def own(text: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec("i", ["e"], [text, out])

@dsl.pipeline(name="p")
def p(lr: float = 0.1, n: int = 2, tracker_base: str = "/tmp/r"):
    tracked = functools.partial(task_from_app, tracker_base=tracker_base)
    t = tracked(app(), results={"accuracy": float})
    MISTAKE
"""

MISTAKES = {
    'task_from_app(app("next", env={"A": f"{t.outputs[\'acc\']}"}))': (
        "The stage 'train' has no output 'acc'. Did you mean 'accuracy'? Its outputs: 'run_id', 'accuracy'"
    ),
    't.outputs["loss"]': "The stage 'train' has no output 'loss'. Its outputs: 'run_id', 'accuracy'",
    'x = own(text="a")\n    x.outputs["ouT"]': "The task 'x' has no output 'ouT'. Did you mean 'out'? Its outputs: 'out'.",
    "tracked(app('next'), reads=t.output)": (
        "The task 't' has 3 outputs, so t.output does not exist. Name one of them: t.outputs['accuracy']. Its outputs: "
        "'run_id', 'accuracy', 'metrics'. To read the results of a stage, pass the task itself: reads=t."
    ),
    "tracked(app('next'), reads=tracked(app()).output)": (
        "reads has the channel 'train-2-run_id', which is not a task. Pass the task itself: reads=task."
    ),
    "task_from_app(app(), tracker_bas=tracker_base)": (
        "task() has no argument 'tracker_bas'. Did you mean 'tracker_base'? Its arguments: app, tracker_base,"
    ),
    'tracked(app(), result={"a": float})': "task() has no argument 'result'. Did you mean 'results'?",
    "torchx_kfp.Stages().task(app(), read=None)": "task() has no argument 'read'. Did you mean 'reads'?",
    'torchx_kfp.Stages(engine="job")': "Stages() has no argument 'engine'.",
    'torchx_kfp.Stages(trackr_base="r")': "Stages() has no argument 'trackr_base'.",
    'torchx_kfp.Stages().task(app(), queue="gpus")': (
        "task() has no argument 'queue'. queue is an option of the engine: engine=engines.Job(queue=...). Its"
    ),
    'task_from_app(app(), logs="first")': (
        "task() has no argument 'logs'. logs is an option of the engine: engine=engines.Job(logs=...). Its"
    ),
    'engines.Job(succeeds_with=["a"])': (
        "Job() has no argument 'succeeds_with'. engines.JobSet and engines.Volcano have it. Its arguments: queue,"
    ),
    "engines.Job(min_available=1)": "Job() has no argument 'min_available'. engines.Volcano has it.",
    "engines.Jobset()": "has no attribute 'Jobset'. Did you mean 'JobSet'?",
    'torchx_kfp.publish_results(t, imag="i")': "publish_results() needs image: give it image=...",
    'utils.sh("echo", img="i")': "sh() has no argument 'img'. Did you mean 'image'? Its arguments: args, image,",
    'dist.ddp(script="t.py", j="1x1", imag="i")': "ddp() has no argument 'imag'. Did you mean 'image'?",
    'own(txt="a")': "own() has no argument 'txt'. Did you mean 'text'? Its arguments: text",
    'app(imge="x")': "Role() has no argument 'imge'. Did you mean 'image'?",
    'dist.ddp(script="t.py", j=f"1x{n}", image="i")': (
        "ddp() got j='1x{n}', and needs its value while the pipeline is compiled. The pipeline parameter 'n' has one only "
        "when the pipeline runs: give a constant. Channels work in a role's entrypoint, args, the values of env and image"
    ),
    'dist.ddp(script="t.py", j=n, image="i")': "The pipeline parameter 'n' has one only when the pipeline runs: ",
    'dist.ddp(script="t.py", j=f"1x{t.outputs[\'accuracy\']}", image="i")': (
        "ddp() got j='1x{train.accuracy}', and needs its value while the pipeline is compiled. The output 'accuracy' of "
        "'train' has one only when"
    ),
    'task_from_app(utils.sh("echo", num_replicas=n))': (
        "num_replicas of role 'sh' of AppDef 'sh' contains a pipeline channel. Its value must be known when the pipeline is"
    ),
    "int(n)": "Python needs a value while the pipeline is compiled. The pipeline parameter 'n' has one only when",
    "float(lr)": "The pipeline parameter 'lr' has one only when the pipeline runs: compare it with dsl.If, or pass it as it",
    "x = own(text='a')\n    x.after(x)": "The task 'own' waits for itself. Remove its .after() of itself.",
    "dsl.ParallelFor(range(3))": (
        "dsl.ParallelFor takes a list, or a channel for one, but got range(0, 3): write list(range(0, 3))."
    ),
    "x = dsl.ParallelFor([{'lr': 1}]).__enter__()\n    task_from_app(app(env={'A': f'{x.lrr}'}))": (
        "contains the field 'lrr', which no item of the loop has. Did you mean 'lr'? Their fields: 'lr'."
    ),
    "torchx_kfp.hpo.search(app, {})": "search() needs tracker_base: give it tracker_base=...",
    "for i in range(n):\n        task_from_app(app())": (
        "The pipeline parameter 'n' has one only when the pipeline runs: give a constant, or repeat stages with dsl.Para"
    ),
    "torchx_kfp.Stages('results')": "Stages() takes only named arguments: Stages(tracker_base=...).",
    "dsl.If(t < 3)": (
        "A task has no value. Compare one of its outputs, such as task.outputs['loss'] < 0.1; a result is one if it is"
    ),
    "if t.outputs['accuracy'] > 0.9:\n        task_from_app(app())": (
        "The output 'accuracy' of 'train' has a value only when the pipeline runs, so Python cannot decide a condition on "
        "it. Write `with dsl.If(train.outputs['accuracy'] > 0.9):` instead of if"
    ),
    "for i in n:\n        task_from_app(app())": "`with dsl.ParallelFor(n) as item:`",
    "with dsl.If(n):\n        task_from_app(app())": "dsl.If needs a comparison, such as dsl.If(debug == True).",
    'task_from_app(app(env={"A": f"{lr:.2f}"}))': (
        "The pipeline parameter 'lr' has one only when the pipeline runs: pass it without a format, f\"{lr}\", and "
        'format it in the application, such as f"{float(sys.argv[1]):.2f}". (TypeError: unsupported format string'
    ),
    'task_from_app(app(env={"A": "%.2f" % lr}))': (
        "The pipeline parameter 'lr' has one only when the pipeline runs: pass it without a format"
    ),
    'task_from_app(app(env={"A": "%d" % n}))': (
        "The pipeline parameter 'n' has one only when the pipeline runs: pass it without a format"
    ),
    "f\"{t.outputs['accuracy']:>9}\"": (
        "The output 'accuracy' of 'train' has one only when the pipeline runs: pass it without a format, "
        "f\"{t.outputs['accuracy']}\", and format it"
    ),
    'task_from_app(app(env={"A": f"{n * 2}"}))': (
        "The pipeline parameter 'n' has one only when the pipeline runs: pass it as it is, f\"{n}\", and compute "
        "in the application, such as float(sys.argv[1]) * 2, or in a stage before it, whose output is a channel: double"
    ),
    "round(lr, 2)": "The pipeline parameter 'lr' has one only when the pipeline runs: pass it as it is, f\"{lr}\"",
    "-n": "The pipeline parameter 'n' has one only when the pipeline runs: pass it as it is, f\"{n}\"",
    "','.join([lr])": "The pipeline parameter 'lr' has one only when the pipeline runs: write it as text",
    "undefined(n)": "the pipeline cannot be built: NameError: name 'undefined' is not defined",
    "{}['x']": "the pipeline cannot be built: KeyError: 'x'",
}


#: What calls of torchx-kfp begin with: their mistakes do not depend on the versions of kfp and TorchX.
OURS = ("task_from_app(app(), ", "tracked(app(), ", "torchx_kfp.", "engines.")


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        *(
            pytest.param("compile", mistake, marks=[pytest.mark.usual] * mistake.startswith(OURS))
            for mistake in MISTAKES
        ),
        *(pytest.param("run", mistake, marks=pytest.mark.usual) for mistake in list(MISTAKES)[:11:5]),
    ],
)
def test_a_mistake_has_its_own_sentence(command: str, mistake: str, call: Call, tmp_path: Path) -> None:
    text = FILE.replace("MISTAKE", mistake)
    (tmp_path / "wrong.py").write_text(text)
    done = call(command, str(tmp_path / "wrong.py"))
    # In a loop, it is the line before the last.
    line = text.rstrip().count("\n") + 1 - mistake.startswith(("for ", "if "))
    line = 10 if "imge" in mistake else line
    # KFP looks into a condition, and for cycles, when the pipeline is over: in its decorator.
    if mistake.startswith("with ") or "x.after(x)" in mistake:
        line = 16 if sys.version_info >= (3, 11) else 17
    # TorchX's nightly first warns about dist.ddp.
    assert f"Error: {tmp_path / 'wrong.py'}, line {line}: " in done.stderr
    assert MISTAKES[mistake] in done.stderr
    assert "cannot be imported" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "{{channel" not in done.stderr
    assert done.returncode == 2


def test_the_line_is_that_of_the_users_module(call: Call, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(
        "from torchx.specs import AppDef, Role\nfrom torchx_kfp import task_from_app\n\n"
        "def train():\n    return task_from_app(AppDef('a', [Role('r', image='i', entrypoint='e')]), nam='x')\n"
    )
    (tmp_path / "wrong.py").write_text(
        "from kfp import dsl\nfrom parts import train\n\n@dsl.pipeline\ndef p():\n    train()\n"
    )
    done = call("compile", str(tmp_path / "wrong.py"))
    assert f"{tmp_path / 'parts.py'}, line 5: task() has no argument 'nam'. Did you mean 'name'?" in done.stderr


def test_packages_below_this_environment_are_not_the_users(call: Call, tmp_path: Path) -> None:
    """``pip install --user``, and an environment that is layered on another."""
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "somebodys.py").write_text("def fail():\n    raise TypeError('no')\n")
    (tmp_path / "wrong.py").write_text(
        f"import sys\nsys.path.append({str(packages)!r})\nimport somebodys\nsomebodys.fail()\n"
    )
    done = call("compile", str(tmp_path / "wrong.py"))
    assert f"Error: {tmp_path / 'wrong.py'}, line 4 cannot be imported: TypeError: no" in done.stderr
