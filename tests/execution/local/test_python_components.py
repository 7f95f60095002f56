"""Python components (dsl.component) as processes: where they fail, and where their code is; see ``tests/cases``."""

# No postponed annotations: kfp reads annotations as types, and its oldest version knows only typing's names.

import inspect

import pytest
from kfp import dsl

from tests.facts import says
from torchx_kfp.errors import PipelineError
from torchx_kfp.local import Watch, run

pytestmark = pytest.mark.versions


def component(function=None, **options):
    """Make a component as users do, but without installing KFP: kfp.local would do that in this environment."""
    options = {"base_image": "python:3.11", "install_kfp_package": False, **options}
    return dsl.component(function, **options) if function else lambda function: dsl.component(function, **options)


def test_the_path_of_a_file_url(execute, tmp_path):
    @component
    def read_file(data: dsl.Input[dsl.Dataset]) -> str:
        with open(data.path) as file:
            return file.read()

    @component
    def point(path: str, data: dsl.Output[dsl.Dataset]):
        data.uri = f"file://{path}"

    @dsl.pipeline
    def pipeline(path: str):
        read_file(data=point(path=path).outputs["data"])

    (tmp_path / "é.csv").write_text("1,2")
    assert execute(pipeline, {"path": str(tmp_path / "é.csv")})["read-file"].outputs == {"Output": "1,2"}


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
        ("nan", 0, "wrote a report that is not JSON: parameterValues.Output is NaN, which JSON does not have", ""),
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
        assert any("fail_1/program/ephemeral_component.py" in line for line in stage.last_lines())


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


def test_code_that_is_in_the_image(execute):
    @component(target_image="registry/app:1")
    def remote(x: int) -> int:
        return x + 1

    @dsl.pipeline
    def pipeline():
        remote(x=1)

    with pytest.raises(PipelineError) as error:
        execute(pipeline)
    assert str(error.value).splitlines()[1:] == [
        "- task 'remote' is a Python component (dsl.component) whose code is not in its command. Run it in its image "
        "'registry/app:1' (--docker), or, without target_image, compile it with kfp 2.14 or newer."
    ]


def test_another_form_is_refused(tmp_path):
    @dsl.container_component
    def odd():
        return dsl.ContainerSpec(
            image="python:3.11", command=["bash", "-c", "python3 -m kfp.dsl.executor_main --x"], args=[]
        )

    @dsl.pipeline
    def pipeline():
        odd()

    with pytest.raises(PipelineError, match=says("'odd'", "'pipeline'", "dsl.component", "Run")):
        run(pipeline, output_dir=tmp_path, watch=Watch())
