"""Mistakes in a pipeline file: each has its place, the value and the way out."""

from __future__ import annotations

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

@dsl.component(base_image="i")
def model(made: dsl.Output[dsl.Model]):
    pass

@dsl.component(base_image="i")
def use(models: dsl.Input[list[dsl.Model]]):
    pass

@dsl.pipeline(name="p")
def p(lr: float = 0.1, n: int = 2, tracker_base: str = "/tmp/r"):
    tracked = functools.partial(task_from_app, tracker_base=tracker_base)
    t = tracked(app(), results={"accuracy": float})
    MISTAKE
"""

#: What our functions refuse is said in one line: the place, and the way out.
REFUSED = {
    'task_from_app(app("next", env={"A": f"{t.outputs[\'acc\']}"}))': (
        "The stage 'train' has no output 'acc'. Did you mean 'accuracy'? Its outputs: 'run_id', 'accuracy'"
    ),
    't.outputs["loss"]': "The stage 'train' has no output 'loss'. Its outputs: 'run_id', 'accuracy'",
    "tracked(app('next'), reads=tracked(app()).output)": (
        "reads has the channel 'train-2-run_id', which is not a task. Pass the task itself: reads=task."
    ),
    'task_from_app(utils.sh("echo", num_replicas=n))': (
        "num_replicas of role 'sh' of AppDef 'sh' contains a pipeline channel, or a component's input. Its value must be "
        "known when the pipeline is compiled"
    ),
    "x = dsl.ParallelFor([{'lr': 1}]).__enter__()\n    task_from_app(app(env={'A': f'{x.lrr}'}))": (
        "contains the field 'lrr', which no item of the loop has. Did you mean 'lr'? Their fields: 'lr'."
    ),
}
CHANNEL = "has a value only when the pipeline runs. Pass it to the application"
#: Python's and KFP's errors have the lines that led to them.
RAISED = {
    "task_from_app(app(), tracker_bas=tracker_base)": "'tracker_bas'. Did you mean 'tracker_base'?",
    'torchx_kfp.Stages(trackr_base="r")': "unexpected keyword argument 'trackr_base'. Did you mean 'tracker_base'?",
    "task_from_app(app(), retries=3)": "'retries'. KFP's options are methods of a task: task.set_retry(3).",
    "engines.Jobset()": "has no attribute 'Jobset'. Did you mean",
    "torchx_kfp.Stages().tusk(app())": "has no attribute 'tusk'. Did you mean",
    "type('Odd', (), {'__dir__': lambda _: 1 / 0})().x": "'Odd' object has no attribute 'x'",
    'own(txt="a")': 'own() got an unexpected keyword argument "txt".',
    'x = own(text="a")\n    x.outputs["ouT"]': "KeyError: 'ouT'",
    'dist.ddp(script="t.py", j=f"1x{n}", image="i")': f"1x{{n}}\nA parameter of the pipeline, or an output of a task, {CHANNEL}",
    'dist.ddp(script="t.py", j=f"1x{t.outputs[\'accuracy\']}", image="i")': "1x{train.accuracy}",
    "int(n)": CHANNEL,
    "-n": CHANNEL,
    "for i in n:\n        task_from_app(app())": "or repeat stages with dsl.ParallelFor.",
    "len(n)": CHANNEL,
    "n[0]": CHANNEL,
    "1 in n": CHANNEL,
    "for i in range(n):\n        task_from_app(app())": CHANNEL,
    "with dsl.If(n):\n        task_from_app(app())": CHANNEL,
    'task_from_app(app(env={"A": f"{lr:.2f}"}))': CHANNEL,
    "tracked(app('next'), reads=dsl.Collected(t))": "dsl.Collected(task.outputs['run_id'])",
    "undefined(n)": "NameError: name 'undefined' is not defined",
}


def compiled(mistake: str, call: Call, folder: Path, command: str = "compile") -> tuple[str, int]:
    """Compile the file with a mistake; return what is said, and the number of its last line."""
    text = FILE.replace("MISTAKE", mistake)
    (folder / "wrong.py").write_text(text)
    done = call(command, str(folder / "wrong.py"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "{{channel" not in done.stderr
    # In a loop, it is the line before the last.
    return done.stderr, text.rstrip().count("\n") + 1 - mistake.startswith("for ")


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_is_refused_has_its_line(mistake: str, call: Call, tmp_path: Path) -> None:
    said, line = compiled(mistake, call, tmp_path)
    # TorchX's nightly first warns about dist.ddp.
    assert f"Error: {tmp_path / 'wrong.py'}, line {line}: " in said
    assert REFUSED[mistake] in said


@pytest.mark.parametrize("mistake", RAISED)
def test_an_error_has_the_users_lines(mistake: str, call: Call, tmp_path: Path) -> None:
    said, line = compiled(mistake, call, tmp_path, "run" if "undefined" in mistake else "compile")
    if not mistake.startswith("with "):  # KFP looks into a condition when the pipeline is over
        code = mistake.split("\n")[0 if mistake.startswith("for ") else -1].strip()
        assert f"{tmp_path / 'wrong.py'}, line {line}, in p:\n    {code}\n" in said
    assert RAISED[mistake] in said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("app()", "stages.python(train, image=...) makes one, train() does not."),
        (
            "with dsl.ParallelFor([1]):\n        t = task_from_app(app(), tracker_base='r')\n"
            "    task_from_app(app(), tracker_base='r', reads=t)",
            "reads={'train': dsl.Collected(train.outputs['run_id'])}.",
        ),
        (
            "with dsl.If(go == 1):\n        t = task_from_app(app(), tracker_base='r')\n"
            "    task_from_app(app(), tracker_base='r', reads=t)",
            "dsl.OneOf(one.output, other.output).",
        ),
        (
            "with dsl.If(go == 1):\n        with dsl.ParallelFor([1]):\n"
            "            t = task_from_app(app(), tracker_base='r')\n"
            "    task_from_app(app(), tracker_base='r', reads={'all': dsl.Collected(t.outputs['run_id'])})",
            "inside the same dsl.If, or put dsl.If inside the loop.",
        ),
        (
            "with dsl.ParallelFor([1]):\n        made = model()\n"
            "    with dsl.If(go == 1):\n        use(models=dsl.Collected(made.output))",
            "collect them in a stage before it, and pass the output of that.",
        ),
        (
            "t = task_from_app(app(), tracker_base='r')\n"
            "    task_from_app(app(), tracker_base='r', reads={'all': dsl.Collected(t.outputs['run_id'])})",
            "Read another task itself: reads=task.",
        ),
        ("task_from_app(app()).after('train')", "not its name: .after(task)."),
        ("with dsl.ParallelFor([{'task': 1}]):\n        task_from_app(app())", "rename the field of the loop's items."),
        (
            "t = task_from_app(app(), tracker_base='r')\n"
            "    task_from_app(app('b'), tracker_base='r', reads=t).ignore_upstream_failure()",
            "Let that one fail instead: stages.task(app, may_fail=True).",
        ),
        (
            "t = task_from_app(app(), tracker_base='r')\n"
            "    with dsl.ExitHandler(task_from_app(app('b'), tracker_base='r', reads=t)):\n        task_from_app(app())",
            "read records with torchx_kfp.tracking.open_tracker(tracker_base).",
        ),
        (
            "with dsl.If(go == 1) as block:\n        task_from_app(app())\n    task_from_app(app()).after(block)",
            "give one inside the block, not the block.",
        ),
        ("torchx_kfp.Stages('r').task(app())", "Name the options of Stages: Stages(tracker_base=tracker_base)."),
        ("torchx_kfp.hpo.search(app, {}, trial=3)", "Pass the number of trials as trials=."),
        ("task_from_app(app()).set_env_variable('A', text)", "Role(env={'NAME': f'{channel}'})."),
    ],
)
def test_what_kfp_refuses_at_the_end_of_a_pipeline(body: str, words: str, call: Call, tmp_path: Path) -> None:
    text = f"{FILE.partition('@dsl.pipeline')[0]}@dsl.pipeline\ndef p(go: int = 1, text: str = ''):\n    {body}\n"
    (tmp_path / "wrong.py").write_text(text)
    assert call("compile", str(tmp_path / "wrong.py")).stderr.endswith(f"{words}\n")


@pytest.mark.parametrize("default", ["dict = {'seed': None}", "list = [1, None]"])
def test_none_in_a_default_is_named(default: str, call: Call, tmp_path: Path) -> None:
    text = f"{FILE.partition('@dsl.pipeline')[0]}@dsl.pipeline\ndef p(c: {default}):\n    task_from_app(app())\n"
    (tmp_path / "wrong.py").write_text(text)
    said = call("compile", str(tmp_path / "wrong.py")).stderr
    assert said.endswith("has None inside, which KFP does not accept: leave it out, or give another value.\n")


def test_the_lines_of_the_users_modules(call: Call, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(
        "from torchx.specs import AppDef, Role\nfrom torchx_kfp import task_from_app\n\n"
        "def train():\n    return task_from_app(AppDef('a', [Role('r', image='i', entrypoint='e')]), nam='x')\n"
    )
    (tmp_path / "wrong.py").write_text(
        "from kfp import dsl\nfrom parts import train\n\n@dsl.pipeline\ndef p():\n    train()\n"
    )
    done = call("compile", str(tmp_path / "wrong.py"))
    assert (
        f"{tmp_path / 'wrong.py'}, line 6, in p:\n    train()\n{tmp_path / 'parts.py'}, line 5, in train:"
        in done.stderr
    )
    assert done.stderr.endswith("argument 'nam'. Did you mean 'name'?\n")


def test_packages_below_this_environment_are_not_the_users(call: Call, tmp_path: Path) -> None:
    """``pip install --user``, and an environment that is layered on another."""
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "somebodys.py").write_text("def fail():\n    raise TypeError('no')\n")
    (tmp_path / "wrong.py").write_text(
        f"import sys\nsys.path.append({str(packages)!r})\nimport somebodys\nsomebodys.fail()\n"
    )
    done = call("compile", str(tmp_path / "wrong.py"))
    assert done.stderr == f"Error: {tmp_path / 'wrong.py'}, line 4, in <module>:\n    somebodys.fail()\nTypeError: no\n"


def test_a_file_that_cannot_be_read_is_named(call: Call, tmp_path: Path) -> None:
    """As one without permission, which root would have."""
    (tmp_path / "gone.py").write_text("import os\nos.remove(__file__)\n1 / 0\n")
    done = call("run", str(tmp_path / "gone.py"))
    said = f"Error: The pipeline file cannot be read: No such file or directory: {tmp_path / 'gone.py'}.\n"
    assert (done.returncode, done.stderr) == (2, said)


COMPONENT = """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def hello(name: str = "x") -> str:
    return "hello " + name
"""
FACTORY = f"""{COMPONENT}

def build(name: str):
    @dsl.pipeline(name=name)
    def made():
        hello()

    return made
"""
V1 = "This is code of KFP v1, which kfp 2 does not run."
#: Files without a pipeline of their own, the name to load, and what is said; empty if something is loaded.
FILES = {
    "component": (COMPONENT, "", ""),
    "factory": (FACTORY, "", "has no pipeline at its top level, but build creates one. Add a line such as"),
    "imported": ("from component import hello", ":hello", ""),
    "components": (COMPONENT.replace("hello", "a") + COMPONENT, "", "Or name one of its components: a, hello."),
    "operators": ("from kfp import dsl\ndsl.ContainerOp(name='a', image='b')", "", V1),
    "functions": ("from kfp.components import func_to_container_op", "", V1),
    "missing": (
        "from __future__ import annotations\nimport not_there_at_all",
        "",
        "No module named 'not_there_at_all'",
    ),
}


def test_files_without_a_pipeline_of_their_own(tmp_path: Path, call: Call) -> None:
    for file, (text, _, _) in FILES.items():
        (tmp_path / f"{file}.py").write_text(text)
    for file, (_, name, said) in FILES.items():
        done = call("check", f"{file}.py{name}")
        assert done.returncode == (2 if said else 0), done.stderr
        assert said in done.stderr
    assert "annotations" not in done.stderr
    (tmp_path / "job.json").write_text('{"displayName": "x", "pipelineSpec": {"root": {}}}')
    assert "it is a PipelineJob of Vertex AI or TFX. The pipeline is the value of" in call("check", "job.json").stderr
