"""Python components (dsl.component) as processes: their inputs, their outputs, and the packages that they install."""

# No postponed annotations: kfp reads annotations as types, and its oldest version knows only typing's names.
# ruff: noqa: UP006, UP035, UP045

import inspect
import json
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

import kfp
import pytest
from kfp import dsl, local
from kfp.local import config

from tests.cases.kfp_local import interpreter
from tests.facts import says
from torchx_kfp.errors import UnsupportedPipelineError
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.python_components import parse_command
from torchx_kfp.local import Watch, run

pytestmark = pytest.mark.versions


def component(function=None, **options):
    """Make a component as users do, but without installing KFP: kfp.local would do that in this environment."""
    options = {"base_image": "python:3.11", "install_kfp_package": False, **options}
    return dsl.component(function, **options) if function else lambda function: dsl.component(function, **options)


@component
def scalars(i: int, f: float, b: bool, s: str = "é $x \"q\" 'q' \\", unset: Optional[str] = None) -> str:
    return repr((i, f, b, s, unset))


@component
def structs(items: List[int], more: Dict[str, list], plain: dict = {"a": {"b": [True, 0.5]}}) -> Dict[str, list]:  # noqa: B006
    return {"items": items, "more": [more], "plain": [plain]}


@component
def several(n: int) -> NamedTuple("Several", [("i", int), ("f", float), ("flag", bool), ("l", list), ("s", str)]):
    return (n, 2, n > 1, [n, "x"], "")


@component
def files(i: dsl.OutputPath(int), b: dsl.OutputPath(bool), d: dsl.OutputPath(dict), s: dsl.OutputPath(str)) -> int:
    import json

    for path, value in ((i, "3"), (b, "true"), (d, json.dumps({"k": 1.5})), (s, " as it is\n")):
        with open(path, "w") as file:
            file.write(value)
    return 4


@component
def metrics(scores: dsl.Output[dsl.Metrics], curve: dsl.Output[dsl.ClassificationMetrics]):
    scores.log_metric("accuracy", 0.5)
    scores.log_metric("epochs", 3)
    curve.log_roc_curve([0.0, 0.5], [0.5, 1.0], [1.0, 0.1])
    curve.log_confusion_matrix(["a", "b"], [[1, 2], [3, 4]])


@component
def texts(page: dsl.Output[dsl.HTML], note: dsl.Output[dsl.Markdown], at: dsl.OutputPath("Dataset")):
    for path, text in ((page.path, "<p>"), (note.path, "# Note"), (at, "1,2")):
        with open(path, "w") as file:
            file.write(text)


@component
def returned() -> dsl.Dataset:
    made = dsl.Dataset(uri=dsl.get_uri("sets"), metadata={"rows": 2})
    with open(made.path, "w") as file:
        file.write("1\n2\n")
    return made


@component
def serialized() -> dsl.Artifact:
    return "content"


CASES = {
    "scalars": (scalars, {"i": 3, "f": 0.25, "b": True}),
    "structs": (structs, {"items": [1, 2], "more": {"k": ["v", 0.5]}}),
    "several": (several, {"n": 2}),
    "files": (files, {}),
    "metrics": (metrics, {}),
    "texts": (texts, {}),
    "returned": (returned, {}),
    "serialized": (serialized, {}),
}


def plain(value):
    """Return the relevant parts of an artifact of either side: its type, its metadata, and its file's content."""
    if hasattr(value, "path"):
        kind = getattr(value, "schema_title", None) or value.type.title
        content = Path(value.path).read_text() if Path(value.path).exists() else None
        return kind, {key: item for key, item in value.metadata.items() if key != "display_name"}, content
    return value


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each case here, all of them from one run."""

    @dsl.pipeline
    def pipeline():
        for function, arguments in CASES.values():
            function(**arguments)

    result = run(pipeline, output_dir=tmp_path_factory.mktemp("runs"), watch=Watch())
    result.raise_for_failure()
    return {
        stage.name: {name: plain(value) for name, value in {**stage.outputs, **stage.artifacts}.items()}
        for stage in result.stages
    }


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_kfps_own_runner(name, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path))
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path))
    function, arguments = CASES[name]
    theirs = function(**arguments).outputs
    assert theirs
    assert outputs[name] == {key: plain(value) for key, value in theirs.items()}


def test_what_inputs_are_in_python(outputs):
    assert outputs["scalars"] == {"Output": repr((3, 0.25, True, "é $x \"q\" 'q' \\", None))}
    assert outputs["several"] == {"i": 2, "f": 2.0, "flag": True, "l": [2, "x"], "s": ""}
    types = {name: type(value) for name, value in outputs["several"].items()}
    assert types == {"i": int, "f": float, "flag": bool, "l": list, "s": str}


@component
def take(
    data: dsl.Input[dsl.Dataset],
    path: dsl.InputPath("Dataset"),
    missing: Optional[dsl.Input[dsl.Model]] = None,
    whole: float = 3.0,
) -> list:
    with open(path) as file:
        return [file.read(), data.metadata, type(data).__name__, data.path == path, missing, repr(whole)]


def test_artifacts_are_handed_on(execute):
    @dsl.pipeline
    def pipeline() -> dsl.Dataset:
        made = returned()
        take(data=made.output, path=made.output)
        return made.output

    result = execute(pipeline)
    # KFP passes on whole numbers without a fraction, even if they are floats.
    assert result.stages[1].outputs["Output"] == ["1\n2\n", {"rows": 2}, "Dataset", True, None, "3"]
    assert result.artifacts["Output"].metadata == {"rows": 2}


def test_lists_of_artifacts(execute):
    @component
    def make(i: int, model: dsl.Output[dsl.Model]):
        model.metadata["i"] = i
        with open(model.path, "w") as file:
            file.write(f"weights {i}")

    @component
    def use(models: dsl.Input[List[dsl.Model]]) -> list:
        return [[type(model).__name__, model.metadata, open(model.path).read()] for model in models]

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2]) as i:
            made = make(i=i)
        use(models=dsl.Collected(made.outputs["model"]))

    *_, used = execute(pipeline).stages
    assert used.outputs["Output"] == [["Model", {"i": 1}, "weights 1"], ["Model", {"i": 2}, "weights 2"]]


def test_the_path_of_a_file_url(execute, tmp_path):
    @component
    def point(path: str, data: dsl.Output[dsl.Dataset]):
        data.uri = f"file://{path}"

    @dsl.pipeline
    def pipeline(path: str):
        data = point(path=path).outputs["data"]
        take(data=data, path=data)

    (tmp_path / "é.csv").write_text("1,2")
    assert execute(pipeline, {"path": str(tmp_path / "é.csv")}).stages[1].outputs["Output"][0] == "1,2"


def test_python_and_container_components_use_each_others_outputs(execute):
    @dsl.container_component
    def shell(model: dsl.Output[dsl.Model], n: int, items: list):
        return dsl.ContainerSpec(
            image="busybox", command=["sh", "-c", 'printf %s "$1-$2" >"$0"'], args=[model.path, n, items]
        )

    @component
    def read(model: dsl.Input[dsl.Model]) -> str:
        with open(model.path) as file:
            return file.read()

    @dsl.pipeline
    def pipeline():
        first = several(n=7)
        with dsl.If(first.outputs["flag"] == True):  # noqa: E712
            made = shell(n=first.outputs["i"], items=first.outputs["l"])
            read(model=made.outputs["model"])

    assert execute(pipeline).stages[2].outputs == {"Output": '7-[7,"x"]'}


def test_a_custom_path_is_copied_to_where_the_artifact_belongs(execute, tmp_path):
    if not hasattr(dsl.Artifact, "set_path"):
        pytest.skip(f"kfp {kfp.__version__} has no custom paths")

    @component
    def elsewhere(folder: str, model: dsl.Output[dsl.Model]):
        import os

        os.makedirs(folder)
        with open(os.path.join(folder, "weights"), "w") as file:
            file.write("1")
        model.set_path(folder)

    @dsl.pipeline
    def pipeline(folder: str):
        elsewhere(folder=folder)

    (stage,) = execute(pipeline, {"folder": str(tmp_path / "elsewhere")}).stages
    model = stage.artifacts["model"]
    assert model.path.startswith(str(tmp_path / "runs"))
    assert (Path(model.path) / "weights").read_text() == "1"


@component
def fail(how: str) -> float:
    if how == "raise":
        raise ValueError("this is wrong")
    if how == "exit":
        raise SystemExit(7)
    return {"none": None, "nan": float("nan"), "text": "0.5"}[how]


@pytest.mark.parametrize(
    ("how", "code", "reason", "last"),
    [
        ("raise", 1, "ended with exit code 1", "ValueError: this is wrong"),
        ("exit", 7, "ended with exit code 7", ""),
        ("none", 0, "did not give its output 'Output' a value: the function 'fail' returned None, and the file ", ""),
        ("nan", 0, "wrote a report that is not JSON: it contains NaN, which JSON does not have", ""),
        ("text", 1, "ended with exit code 1", "returned value of type <class 'str'>; want type <class 'float'>"),
    ],
)
def test_functions_that_fail(execute_failing, how, code, reason, last):
    @dsl.pipeline
    def pipeline(how: str):
        fail(how=how)

    (stage,) = execute_failing(pipeline, {"how": how}).stages
    assert (stage.exit_code, stage.reason[: len(reason)]) == (code, reason)
    assert last in (stage.last_lines() or [""])[-1]
    if how == "raise":
        assert any("fail-0/program/ephemeral_component.py" in line for line in stage.last_lines())


def test_other_functions_and_embedded_files_come_along(execute, tmp_path):
    known = inspect.signature(dsl.component).parameters
    if not known.keys() >= {"additional_funcs", "embedded_artifact_path"}:
        pytest.skip(f"kfp {kfp.__version__} has neither")

    def twice(text: str) -> str:
        return 2 * text

    (tmp_path / "words.txt").write_text("some words ")

    @component(embedded_artifact_path=str(tmp_path / "words.txt"), additional_funcs=[twice])
    def read(words: dsl.EmbeddedInput[dsl.Dataset]) -> str:
        with open(words.path) as file:
            return twice(file.read())

    @dsl.pipeline
    def pipeline():
        read()

    assert execute(pipeline).stages[0].outputs == {"Output": "some words some words "}


@pytest.mark.usual
def test_a_source_that_no_argument_could_hold(execute, tmp_path):
    function = "def big() -> int:\n" + "".join(f"    x = {i}\n" for i in range(15000)) + "    return x\n"
    (tmp_path / "big.py").write_text(function)
    spec = inspect.importlib.util.spec_from_file_location("big", tmp_path / "big.py")
    module = inspect.importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    big = component(module.big)

    @dsl.pipeline
    def pipeline():
        big()

    assert len(function) > 1 << 17
    assert execute(pipeline).stages[0].outputs == {"Output": 14999}


def test_code_that_is_in_the_image(execute, tmp_path, monkeypatch):
    @component(target_image="registry/app:1")
    def remote(x: int) -> int:
        return x + 1

    @dsl.pipeline
    def pipeline():
        remote(x=1)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedPipelineError) as error:
        execute(pipeline)
    assert str(error.value).splitlines()[1:] == [
        "- task 'remote' is a Python component whose code is in its image 'registry/app:1' (target_image) and not in "
        "this folder: there is no kfp_config.ini that says where the function 'remote' is. Start the run in the "
        "folder from which 'kfp component build' has built the image, or run the task in the image (--docker)."
    ]
    (tmp_path / "app.py").write_text("def remote(x: int) -> int:\n    return x + 1\n")
    (tmp_path / "kfp_config.ini").write_text("[Components]\nremote = app.py\n")
    assert execute(pipeline).stages[0].outputs == {"Output": 2}


def test_another_form_is_refused(tmp_path):
    @dsl.container_component
    def odd():
        return dsl.ContainerSpec(
            image="python:3.11", command=["bash", "-c", "python3 -m kfp.dsl.executor_main --x"], args=[]
        )

    @dsl.pipeline
    def pipeline():
        odd()

    with pytest.raises(UnsupportedPipelineError, match=says("'odd'", "'pipeline'", "dsl.component", "Run")):
        run(pipeline, output_dir=tmp_path, watch=Watch())


def commands_of(**options):
    @dsl.component(base_image="python:3.11", **options)
    def function(x: int) -> int:
        return x

    @dsl.pipeline
    def pipeline():
        function(x=1)

    (container,) = [made.container for made in load_pipeline(pipeline).components.values() if made.container]
    return (*container.command, *container.args)


@pytest.mark.parametrize(
    ("options", "installs"),
    [
        ({}, []),
        ({"install_kfp_package": False}, []),
        ({"packages_to_install": ["a==1", 'b; python_version<"3.9"', "c[x]>=1,<2"]}, 1),
        ({"packages_to_install": ["kfp==2.0.1", "a"]}, 1),
        ({"packages_to_install": ["a"], "install_kfp_package": False}, 1),
        ({"use_venv": True, "packages_to_install": ["a"]}, 1),
        ({"use_venv": True}, []),
        ({"kfp_package_path": "git+https://github.com/kubeflow/pipelines.git@master#subdirectory=sdk/python"}, []),
        ({"kfp_package_path": "/dist/kfp-2.17.0-py3-none-any.whl", "packages_to_install": ["a"]}, 1),
        ({"packages_to_install": ["git+https://host/a.git#egg=a", "./b"]}, 1),
        (
            {"packages_to_install": ["a"], "pip_index_urls": ["https://$USER@one/simple", "http://two"]},
            [
                *("--index-url", "https://$USER@one/simple", "--extra-index-url", "http://two"),
                *("--trusted-host", "https://$USER@one/simple", "--trusted-host", "http://two", "a"),
            ],
        ),
        (
            {"packages_to_install": ["a"], "pip_index_urls": ["http://one"], "pip_trusted_hosts": ["h"]},
            ["--index-url", "http://one", "--trusted-host", "h", "a"],
        ),
    ],
)
def test_what_a_command_installs(options, installs):
    python = parse_command(commands_of(**options))
    expected = options["packages_to_install"] if installs == 1 else installs
    assert python.installs == ((tuple(expected),) if expected else ())
    assert python.function == "function"
    assert "def function(x: int) -> int:" in python.source


def test_the_command_of_an_older_kfp():
    script = (
        '\nif ! [ -x "$(command -v pip)" ]; then\n    python3 -m ensurepip || python3 -m ensurepip --user || '
        "apt-get install python3-pip\nfi\n\nPIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install --quiet     "
        "--no-warn-script-location 'a' 'kfp==2.0.1' && \"$0\" \"$@\"\n"
    )
    start = (
        'program_path=$(mktemp -d)\nprintf "%s" "$0" > "$program_path/ephemeral_component.py"\npython3 -m '
        'kfp.components.executor_main --component_module_path "$program_path/ephemeral_component.py" "$@"\n'
    )
    words = ("sh", "-c", script, "sh", "-ec", start, "def f(): ...", "--executor_input", "{}")
    python = parse_command((*words, "--function_to_execute", "f"))
    assert (python.function, python.source, python.installs) == ("f", "def f(): ...", (("a", "kfp==2.0.1"),))
    assert python.command("f.py", {"s3://x": "x"})[3:6] == ['{"s3://x": "x"}', "--component_module_path", "f.py"]
    assert json.loads(python.arguments[1]) == {}


@pytest.mark.parametrize("index", [1, 2, 4, 5])
def test_commands_that_only_look_alike(index):
    words = list(commands_of(packages_to_install=["a"]))
    assert parse_command(words) is not None
    words[index] = "true"
    assert parse_command(words) is None
