"""Files that are compiled pipelines, and files that are not, which are rejected with these messages."""

from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.components import utils

from tests.execution.local.components import ir, load, write
from tests.facts import says
from torchx_kfp.errors import PipelineError
from torchx_kfp.local import load_pipeline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", says("p.yaml'", "YAML")),
        (
            "",
            says("v2", "mapping", "kfp.compiler.Compiler()", "pipelineInfo"),
        ),
        ("- 1", says("v2", "mapping", "root", "kfp.compiler.Compiler()", "pipelineInfo")),
        (
            "b: 1\na: 2",
            says("'a'", "'b'", "pipelineInfo", "kfp.compiler.Compiler()"),
        ),
        (
            "kind: Workflow",
            says("v1", "Argo", "pipeline", "Compile"),
        ),
        (
            "kind: PipelineVersion\nspec: {pipelineSpec: {pipelineInfo: {name: x}, root: {dag: {}}}}",
            says("a Kubernetes manifest (PipelineVersion)", "without Kubernetes manifest format", "Compile"),
        ),
        ("implementation: {}", says("a component of KFP v1", "kfp 2", "compile a pipeline")),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: gone}",
            says("v2", "'gone'", "pipeline", "executor", "Compile"),
        ),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: e}\ndeploymentSpec: {executors: {e: {container: {}}}}",
            says("v2", "pipeline", "tasks", "Compile"),
        ),
        ("pipelineInfo: {}\nroot: {dag: {}}", says("v2", "'name' is missing", "Compile")),
        ("pipelineInfo: 1\nroot: {dag: []}", says("damaged KFP v2 pipeline", "pipelineInfo is 1", "an object")),
        (
            "pipelineInfo: {name: x}\nroot: {dag: {tasks: {train: {dependentTasks: prepare}}}}",
            says("root.dag.tasks.train.dependentTasks is 'prepare', but must be a list"),
        ),
        (
            "components: {c: {executorLabel: e}}\ndeploymentSpec: {executors: {e: {container: {image: i}}}}\n"
            "pipelineInfo: {name: x}\nroot: {dag: {}}\n---\n"
            "platforms: {kubernetes: {deploymentSpec: {executors: {e: {fieldPathAsEnv: [{name: X}]}}}}}",
            says("damaged KFP v2 pipeline", "'fieldPath' is missing"),
        ),
        (
            # dict.update takes such a list for an object.
            "pipelineInfo: {name: x}\nroot: {dag: {}}\n---\nplatforms: [{fieldPath: a, name: b}]",
            says("platforms is [{'fieldPath': 'a', 'name': 'b'}]", "must be an object"),
        ),
        ("pipelineInfo: {name: x}\nroot: {dag: {tasks: {a: }}}", says("root.dag.tasks.a is None", "an object")),
        ("pipelineInfo: {name: x}\nroot: {dag: {tasks: {3: {}}}}", says("root.dag.tasks.3", "a key", "not text")),
        ("pipelineInfo: {name: x}\nroot: {dag: {x: 1.0e+400}}", says("root.dag.x is inf", "finite")),
        ("pipelineInfo: {name: x}\nroot: {dag: {x: 2026-01-01}}", says("root.dag.x is datetime.date", "not JSON")),
    ],
)
def test_files_that_are_no_pipelines(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=message):
        load_pipeline(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task['componentRef']['name'] = 'gone'", "the task 'for-loop-2' names the component 'gone', which is missing"),
        ("task['dependentTasks'] = ['gone']", "the task 'for-loop-2' waits for 'gone', which is missing"),
        (
            "task['parameterIterator']['items'] = {'raw': '{'}",
            "root.dag.tasks.for-loop-2.parameterIterator.items.raw is '{', but must be a JSON list as text",
        ),
        ("task['retryPolicy'] = {'maxRetryCount': 1, 'backoffDuration': '1h'}", "'1h' is not a duration in seconds"),
        (
            "spec['components']['comp-for-loop-2']['dag']['tasks']['write']['componentRef']['name'] = "
            "'comp-for-loop-2'",
            "these components wait for each other: comp-for-loop-2 -> comp-for-loop-2",
        ),
        (
            "spec['root']['dag']['outputs'] = {'parameters': {'o': {'valueFromParameter': "
            "{'producerSubtask': 'gone', 'outputParameterKey': 'x'}}}}",
            "the output 'o' comes from the task 'gone', which is missing",
        ),
    ],
)
def test_damaged_pipelines(tmp_path, change, message):
    documents = ir(folder=tmp_path)
    spec = documents[0]
    exec(change, {"spec": spec, "task": spec["root"]["dag"]["tasks"]["for-loop-2"]})  # noqa: S102 - the changes above
    with pytest.raises(PipelineError) as error:
        load(documents, tmp_path)
    assert str(error.value).endswith(
        f"p.yaml' is a damaged KFP v2 pipeline ({message}). Compile it again instead of editing it."
    )


def test_settings_for_platforms_may_be_in_several_documents(tmp_path):
    """Only those for Kubernetes have KFP's form."""
    documents = ir(folder=tmp_path)[:1]
    documents.append({"platforms": {"kubernetes": {"pipelineConfig": {"resourceTtl": 3}}}, "metadata": "any"})
    documents.append({"platforms": {"other": {"executors": []}}})
    assert load(documents, tmp_path).platform == {"resourceTtl": 3}


def test_tasks_that_wait_for_each_other_are_named():
    @dsl.pipeline(name="circle")
    def pipeline():
        first, second = write(x="a"), write(x="b")
        first.after(second)
        second.after(first)

    with pytest.raises(PipelineError, match=says("'circle'", "write -> write-2 -> write", ".after()")) as error:
        load_pipeline(pipeline)
    assert "0x" not in str(error.value)


def test_a_torchx_component_is_not_a_pipeline():
    with pytest.raises(PipelineError, match=says("'echo'", "task_from_app(echo(", "component_from_function(echo)")):
        load_pipeline(utils.echo)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PipelineError, match=says("none.yaml'", "path", "kfp.compiler.Compiler()")):
        load_pipeline(tmp_path / "none.yaml")
    (tmp_path / "some.yml").touch()
    with pytest.raises(PipelineError, match=says("some.yaml'", f"Did you mean '{tmp_path}/some.yml'?")):
        load_pipeline(tmp_path / "some.yaml")
    with pytest.raises(PipelineError, match=says("cannot be read as a compiled pipeline", "Is a directory")):
        load_pipeline(tmp_path)
    with pytest.raises(PipelineError, match=says("no file", "flow.py", "or the pipeline function itself.")):
        load_pipeline(tmp_path / "flow.py")
    Path(tmp_path, "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineError, match=says("cannot be read as a compiled pipeline", "'utf-8'", "0xff")):
        load_pipeline(tmp_path / "binary")
    with pytest.raises(PipelineError, match=says("3 is not a pipeline", "path", "kfp.dsl.pipeline")):
        load_pipeline(3)


SPEC = "pipelineInfo: {name: x}\nroot: {dag: {}}"


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels))]
    return "\n".join([*lines, SPEC])


#: libyaml 0.2.6 has its own limit, for levels of flow style.
NESTED = "not a compiled pipeline: .* nested more than 100 levels|is not valid YAML: .*\n.*maximum nesting depth"
INVALID = "is not valid YAML"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, NESTED),
        ("a: " + "[" * 101 + "]" * 101, NESTED),
        ("{" * 100_000, NESTED),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, NESTED),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", NESTED),
        ("\n".join(" " * n + "a:" for n in range(1000)), NESTED),
        ("- " * 5000 + "a", NESTED),
        (bomb(64), says("1,000,000", "aliases", "values")),
        (f"a: &a [*a]\n{SPEC}", says("damaged", "a[0][0]", "nested too deeply")),
        (f"a: &a {{b: *a}}\n{SPEC}", says("damaged", "a.b.b", "nested too deeply")),
        *((f"a: &a {{{key}: *a}}", says("not a compiled pipeline", "(<<)")) for key in ("<<", '!!merge "<"')),
        ("- x\n" * 1_000_001, says("not a compiled pipeline", "1,000,000", "values")),
        *((text, INVALID) for text in ("a: *b", "a: 2026-99-99", "? [a]\n: b", "? {a: b}\n: c", "a: \x00")),
        *((f"a: !!{text}", INVALID) for text in ("python/object/apply:os.system [true]", "timestamp x", "int x")),
        *((f"a: !!{text}", INVALID) for text in ("set [x]", "binary é")),
    ],
)
def test_files_that_would_take_the_machine(tmp_path, text, message):
    """Such files caused a segmentation fault and tracebacks, and one with 1 kB took all memory."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=message):
        load_pipeline(path)


def test_the_python_file_of_a_pipeline_is_no_compiled_one(tmp_path):
    (tmp_path / "p.py").write_text("from kfp import dsl\nx: int = 1\n")
    with pytest.raises(PipelineError, match=says("p.py", "Python file", "Import its function", "compile")):
        load_pipeline(tmp_path / "p.py")


def test_a_file_that_does_not_end():
    with pytest.raises(PipelineError, match=says("'/dev/zero'", "16", "pipeline")):
        load_pipeline("/dev/zero")


def test_pipelines_in_pipelines_are_counted(tmp_path):
    compiled, *_ = ir(tmp_path)

    def nested(levels: int, times: int) -> dict[str, Any]:
        task = {"componentRef": {"name": "comp-write"}, "inputs": {}}
        components = {"comp-0": {"dag": {"tasks": {"write": task}}}}
        for level in range(1, levels):
            inner = {"componentRef": {"name": f"comp-{level - 1}"}}
            components[f"comp-{level}"] = {"dag": {"tasks": {f"t{n}": inner for n in range(times)}}}
        root = {"dag": {"tasks": {"top": {"componentRef": {"name": f"comp-{levels - 1}"}}}}}
        return {**compiled, "components": {**compiled["components"], **components}, "root": root}

    with pytest.raises(PipelineError, match=says("100,000", "tasks", "p.yaml'", "Compile")):
        load([nested(40, 2)], tmp_path)
    with pytest.raises(PipelineError, match=says("50", "levels", "p.yaml'", "Compile")):
        load([nested(60, 1)], tmp_path)
    assert load([nested(10, 2)], tmp_path).name == "pipeline"
