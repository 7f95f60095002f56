"""What cannot run on this machine is refused by name, in these words, before anything is started."""

# The oldest kfp that is supported knows typing's names of generic types only.
# ruff: noqa: UP006, UP035

import textwrap
from pathlib import Path
from typing import Dict, List

import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from tests.local.components import shell, text_of, write
from torchx_kfp.errors import (
    ArgumentError,
    LocalRunError,
    PipelineFileError,
    StageFailedError,
    UnsupportedPipelineError,
)
from torchx_kfp.local import describe_parameters, load_pipeline, parse_arguments, run
from torchx_kfp.local.load import pipeline_from_documents


def refusal(pipeline, tmp_path):
    """The message, without its first line; and nothing was started."""
    with pytest.raises(UnsupportedPipelineError) as error:
        run(pipeline, output_dir=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()
    assert error.value.exit_code == 2
    first, *lines = str(error.value).splitlines()
    assert first == "The pipeline 'pipeline' cannot run on this machine, so nothing was started:"
    return [line.removeprefix("- ") for line in lines]


@dsl.container_component
def make_model(model: dsl.Output[dsl.Model]):
    return dsl.ContainerSpec(image="busybox", command=["sh"], args=[model.path])


@dsl.container_component
def use_model(model: dsl.Input[dsl.Model]):
    return dsl.ContainerSpec(image="busybox", command=["sh"], args=[model.path])


@dsl.container_component
def no_command(x: str):
    return dsl.ContainerSpec(image="busybox", args=[x])


@dsl.container_component
def status(status: dsl.PipelineTaskFinalStatus):
    return dsl.ContainerSpec(image="busybox", command=["sh"], args=[status])


@dsl.container_component
def with_default(x: str = "d"):
    return dsl.ContainerSpec(image="busybox", command=["sh"], args=[x])


@dsl.component(base_image="python:3.11")
def light(x: int) -> int:
    return x


def test_artifacts_importers_python_components_and_images_own_commands(tmp_path):
    @dsl.pipeline
    def pipeline():
        imported = dsl.importer(artifact_uri="gs://b/model", artifact_class=dsl.Model)
        use_model(model=imported.output)
        made = make_model()
        use_model(model=made.outputs["model"])
        light(x=1)
        no_command(x="a")

    assert refusal(pipeline, tmp_path) == [
        "task 'importer' imports an artifact (dsl.importer). Run the pipeline on KFP, or give the stage a URL as a "
        "parameter.",
        "task 'light' is a Python component (dsl.component). Run the pipeline on KFP, or make it a container "
        "component.",
        "task 'make-model' makes an artifact ('model'). Run the pipeline on KFP, or pass a parameter or a "
        "result instead.",
        "task 'no-command' has no command, so it runs what the image 'busybox' starts by itself, and images "
        "are not used "
        "here. Give the component a command.",
        "task 'use-model' takes an artifact ('model'). Run the pipeline on KFP, or pass a parameter or a "
        "result instead.",
        "task 'use-model-2' takes an artifact ('model'). Run the pipeline on KFP, or pass a parameter or a "
        "result instead.",
    ]


def test_exit_tasks_and_ignored_failures(tmp_path):
    @dsl.pipeline
    def pipeline():
        done = write(x="done")
        with dsl.ExitHandler(done):
            first = write(x="a")
            with_default(x=first.outputs["out"]).ignore_upstream_failure()

    assert refusal(pipeline, tmp_path) == [
        "task 'write' is the exit task of a dsl.ExitHandler. Run the pipeline on KFP.",
        "task 'exit-handler-1/with-default' runs whatever became of the tasks before it (ignore_upstream_failure). "
        "Run the pipeline on KFP.",
    ]


def test_the_final_status_of_tasks(tmp_path):
    @dsl.pipeline
    def pipeline():
        with dsl.ExitHandler(status()):
            write(x="a")

    assert refusal(pipeline, tmp_path) == [
        "task 'status' is the exit task of a dsl.ExitHandler. Run the pipeline on KFP.",
        "task 'status' takes the final status of other tasks as its input 'status'. Run the pipeline on KFP.",
    ]


def test_loops_over_artifacts(tmp_path):
    @dsl.pipeline
    def make_models() -> List[dsl.Model]:
        with dsl.ParallelFor([1, 2]):
            made = make_model()
        return dsl.Collected(made.outputs["model"])

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(make_models().output) as model:
            use_model(model=model)

    assert "task 'for-loop-1' loops over artifacts (dsl.ParallelFor). Run the pipeline on KFP." in refusal(
        pipeline, tmp_path
    )


def test_what_the_application_would_miss(tmp_path):
    @dsl.pipeline
    def pipeline():
        task = shell(script=":")
        kubernetes.mount_pvc(task, "claim", "/no/pvc")
        kubernetes.use_secret_as_volume(task, "sec", "/no/secret")
        kubernetes.use_config_map_as_volume(task, "conf", "/no/config")
        kubernetes.empty_dir_mount(task, "scratch", "/no/scratch")
        kubernetes.add_ephemeral_volume(task, "temp", "/no/temp", ["ReadWriteOnce"], "1Gi")
        kubernetes.use_secret_as_env(task, "sec", {"u": "NO_USER", "p": "NO_PASSWORD"})
        kubernetes.use_config_map_as_env(task, "conf", {"u": "NO_CONFIG"})
        kubernetes.use_secret_as_volume(task, "optional", "/no/optional", optional=True)

    mounts = {
        "the volume claim 'claim'": "/no/pvc",
        "the secret 'sec'": "/no/secret",
        "the config map 'conf'": "/no/config",
        "an empty directory 'scratch'": "/no/scratch",
        "a temporary volume 'temp'": "/no/temp",
    }
    assert refusal(pipeline, tmp_path) == [
        *(
            f"task 'shell' mounts {what} at '{path}', which is not a directory of this machine. Make that "
            f"directory, with "
            "what the stage shall find in it."
            for what, path in mounts.items()
        ),
        "task 'shell' takes 'NO_USER' and 'NO_PASSWORD' from the secret 'sec'. Set them in the environment "
        "of this run.",
        "task 'shell' takes 'NO_CONFIG' from the config map 'conf'. Set it in the environment of this run.",
    ]


def test_what_kfp_compiles_wrongly(tmp_path):
    @dsl.pipeline
    def pipeline(n: int = 1, s: str = ""):
        with dsl.ParallelFor([{"a": "x"}]) as item:
            write(x=f"{item.a} in text")
            with dsl.If(n == 1):
                write(x=f"{item}")
        with dsl.If(s == "it's"):
            write(x="quote")

    lost = (
        "which does not exist where the task stands: KFP has lost it in compiling, as it does with loop "
        "items and their "
        "fields inside of text, lists and dicts. Pass the loop item as an argument of its own, and put the "
        "text together "
        "in the component."
    )
    lines = refusal(pipeline, tmp_path)
    assert lines[0] == (
        "task 'condition-4' has the condition \"inputs.parameter_values['pipelinechannel--s'] == 'it's'\", which is "
        "not an expression of the Common Expression Language. KFP compiles a string with a quote or a backslash in it "
        "wrongly: compare with one that has none."
    )
    assert f"task 'for-loop-2' takes 'loop-item-param-1-subvar-a', {lost}" in lines
    assert (
        "task 'for-loop-2/condition-3/write-2' holds the channel 'loop-item-param-1' as text that KFP has not filled "
        "in. Pass it as an argument of its own."
    ) in lines


def test_channels_in_variables_and_loop_items(tmp_path):
    @dsl.pipeline
    def pipeline(x: str = "v"):
        shell(script=":").set_env_variable("A", f"v-{x}")
        with dsl.ParallelFor([f"{x}-a", "b"]) as item:
            write(x=item)
        with dsl.ParallelFor([{"k": f"{x}-a"}]) as item:
            write(x=item.k)

    lost = "holds the channel 'x' as text that KFP has not filled in. Pass it as an argument of its own."
    assert refusal(pipeline, tmp_path) == [f"task {name!r} {lost}" for name in ("for-loop-2", "for-loop-4", "shell")]


@pytest.mark.parametrize(
    ("compare", "condition"),
    [
        (lambda n, s, b: n == "3", "\"'int(inputs.parameter_values['pipelinechannel--n'])' == '3'\""),
        (lambda n, s, b: b == "true", "\"'inputs.parameter_values['pipelinechannel--b']' == 'true'\""),
        (
            lambda n, s, b: s == n,
            "\"inputs.parameter_values['pipelinechannel--s'] == 'int(inputs.parameter_values['pipelinechannel--n'])'\"",
        ),
    ],
)
def test_conditions_across_types(tmp_path, compare, condition):
    @dsl.pipeline
    def pipeline(n: int = 1, s: str = "", b: bool = True):
        with dsl.If(compare(n, s, b)):
            write(x="x")

    assert refusal(pipeline, tmp_path) == [
        f"task 'condition-1' has the condition {condition}, which compares values of different types, so KFP has put "
        "one of them into quotes. Compare an int with an int (3 instead of '3'), a bool with True or False, a str with "
        "a str."
    ]


def test_volumes_that_the_pipeline_makes(tmp_path):
    @dsl.pipeline
    def pipeline():
        kubernetes.CreatePVC(pvc_name="a", access_modes=["ReadWriteOnce"], size="1Gi", storage_class_name="s")
        kubernetes.DeletePVC(pvc_name="a")

    assert refusal(pipeline, tmp_path) == [
        f"task {name!r} makes or deletes a volume (kubernetes.CreatePVC, kubernetes.DeletePVC), which cannot be done "
        "here. Run the pipeline on KFP, or leave the task out and make the directory that the stages mount the "
        "volume at."
        for name in ("createpvc", "deletepvc")
    ]


def ir(**changes):
    """A small pipeline as documents, changed by what kfp's own compiler does not write."""

    @dsl.pipeline
    def pipeline(x: str = "v"):
        with dsl.ParallelFor(["a"]) as item:
            write(x=item)

    path = changes.pop("folder") / "small.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "spec['root']['dag']['tasks']['for-loop-2']['parameterIterator']['items'] = {'raw': '{'}",
            "task 'for-loop-2' loops over '{', which is not a JSON list. Compile the pipeline again.",
        ),
        (
            "spec['root']['dag']['tasks']['for-loop-2']['parameterIterator']['items'] = {'kind': 'x'}",
            "task 'for-loop-2' loops over items that come from neither a constant nor an input. Run the pipeline "
            "on KFP.",
        ),
        (
            "spec['root']['dag']['tasks']['for-loop-2']['componentRef']['name'] = 'comp-write'",
            "task 'for-loop-2' is a loop without a pipeline inside. Run the pipeline on KFP.",
        ),
        (
            "spec['root']['dag']['tasks']['for-loop-2']['retryPolicy'] = {'maxRetryCount': 2}",
            "task 'for-loop-2' is retried as a whole (set_retry on a nested pipeline). Run the pipeline on KFP, "
            "or set the "
            "retries on its tasks.",
        ),
        (
            "spec['deploymentSpec']['executors']['exec-write'] = {'customJob': {}}",
            "task 'for-loop-2/write' has an executor of the kind 'customJob'. Run the pipeline on KFP.",
        ),
        (
            "spec['deploymentSpec']['executors']['exec-write']['container']['args'] = ['{{$.workspace_path}}/x']",
            "task 'for-loop-2/write' uses the workspace path. Run the pipeline on KFP.",
        ),
        (
            "spec['components']['comp-write']['inputDefinitions']['parameters']['x']['parameterType'] = 'TASK_CONFIG'",
            "task 'for-loop-2/write' has the input 'x' of the type TASK_CONFIG. Run the pipeline on KFP.",
        ),
        (
            "spec['components']['comp-for-loop-2']['dag']['tasks']['write']['inputs']['parameters']['x']"
            "['parameterExpressionSelector'] = 'size(string_value)'",
            "task 'for-loop-2/write' has the expression 'size(string_value)' for its input 'x'. Run the pipeline "
            "on KFP.",
        ),
        (
            "platform['deploymentSpec'] = {'executors': {'exec-write': {'brandNew': {}}}}",
            "task 'for-loop-2/write' has the Kubernetes setting 'brandNew', which this version does not know. "
            "Run it on "
            "KFP.",
        ),
        (
            "platform['pipelineConfig'] = {'workspace': {'size': '1Gi'}}",
            "the pipeline has a workspace, a volume that its stages share. Run the pipeline on KFP.",
        ),
        (
            "platform['pipelineConfig'] = {'brandNew': 1}",
            "the pipeline has the setting 'brandNew', which this version does not know. Run the pipeline on KFP.",
        ),
        (
            "spec['components']['comp-write']['outputDefinitions']['parameters']['../x'] = {'parameterType': 'STRING'}",
            "task 'for-loop-2/write' has the output '../x', whose name cannot be a file's. Rename the output.",
        ),
        (
            "spec['root']['inputDefinitions']['artifacts'] = {'data': {}}",
            "the pipeline takes an artifact ('data'). Run the pipeline on KFP.",
        ),
    ],
)
def test_what_other_compilers_may_write(tmp_path, change, message):
    documents = ir(folder=tmp_path)
    platform = {}
    exec(change, {"spec": documents[0], "platform": platform})  # noqa: S102 - the changes above
    documents.append({"platforms": {"kubernetes": platform}})
    assert refusal(pipeline_from_documents(documents, "p.yaml"), tmp_path) == [message]


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"^The file '.*p\.yaml' is not valid YAML: while parsing a flow node"),
        (
            "",
            r"^The file '.*' is not a compiled KFP v2 pipeline: it has no mapping at its top level, and no pipeline",
        ),
        ("- 1", r"it has no mapping at its top level"),
        (
            "b: 1\na: 2",
            r"it has 'a', 'b' at its top level, and no pipelineInfo and root\. Compile a pipeline with kfp\.comp",
        ),
        (
            "kind: Workflow",
            r"it is an Argo workflow, which KFP v1 compiled to\. Compile the pipeline again with kfp 2\.$",
        ),
        (
            "kind: Pipeline",
            r"it is a Kubernetes manifest \(Pipeline\)\. Compile the pipeline without Kubernetes manifest",
        ),
        ("implementation: {}", r"it is a component of KFP v1\. Compile a pipeline that uses it, with kfp 2\.$"),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: gone}",
            r"^The file '.*' is a damaged KFP v2 pipeline \(root names the executor 'gone', which is missing\)\. "
            r"Compile",
        ),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: e}\ndeploymentSpec: {executors: {e: {container: {}}}}",
            r"damaged KFP v2 pipeline \(its root has no tasks\)",
        ),
        ("pipelineInfo: {}\nroot: {dag: {}}", r"damaged KFP v2 pipeline \(KeyError: 'name'\)"),
        ("pipelineInfo: 1\nroot: {dag: []}", r"damaged KFP v2 pipeline \(AttributeError: "),
    ],
)
def test_files_that_are_no_pipelines(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task['componentRef']['name'] = 'gone'", "the task 'for-loop-2' names the component 'gone', which is missing"),
        ("task['dependentTasks'] = ['gone']", "the task 'for-loop-2' waits for 'gone', which is missing"),
        ("task['dependentTasks'] = ['for-loop-2']", "these tasks wait for each other: for-loop-2 -> for-loop-2"),
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
    with pytest.raises(PipelineFileError) as error:
        pipeline_from_documents(documents, "p.yaml")
    assert str(error.value) == (
        f"The file 'p.yaml' is a damaged KFP v2 pipeline ({message}). Compile it again instead of editing it."
    )


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PipelineFileError, match=r"^There is no file '.*none\.yaml'\. Give the path of a compiled pipe"):
        load_pipeline(tmp_path / "none.yaml")
    with pytest.raises(PipelineFileError, match=r"^The file '.*' cannot be read as a compiled pipeline: .*directory"):
        load_pipeline(tmp_path)
    Path(tmp_path, "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineFileError, match=r"cannot be read as a compiled pipeline: 'utf-8' codec can't decode"):
        load_pipeline(tmp_path / "binary")
    with pytest.raises(
        PipelineFileError, match=r"^3 is no pipeline: pass the path of a compiled pipeline, or a functi"
    ):
        load_pipeline(3)


# Arguments


@dsl.pipeline(name="train")
def parameters(s: str, n: int = 3, lr: float = 0.1, on: bool = True, li: List[int] = [1], st: Dict[str, int] = {}):  # noqa: B006
    write(x=s)


DESCRIBED = textwrap.dedent("""\
    The parameters of the pipeline 'train' are:
      s: str
      li: list = [1]
      lr: float = 0.1
      n: int = 3
      on: bool = True
      st: dict = {}""")


def argument_error(arguments, pipeline=parameters):
    with pytest.raises(ArgumentError) as error:
        run(pipeline, arguments, quiet=True)
    return str(error.value)


def test_wrong_arguments_are_refused_with_the_list_of_the_right_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert argument_error({"lrr": 1, "n": "3", "zzz": None}) == (
        "There is no parameter 'lrr'; did you mean 'lr'?\n"
        "The argument 'n' is not an int: '3'.\n"
        "There is no parameter 'zzz'.\n"
        "The argument 's' is missing.\n" + DESCRIBED
    )
    assert argument_error({"s": None}).startswith("The argument 's' is not a str: None.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_without_parameters():
    @dsl.pipeline
    def pipeline():
        write(x="x")

    assert argument_error({"n": 1}, pipeline) == (
        "There is no parameter 'n'.\nThe pipeline 'pipeline' has no parameters."
    )


def test_arguments_from_text():
    loaded = load_pipeline(parameters)
    words = {"s": "7", "n": "7", "lr": "1e-3", "on": "false", "li": "[1,2]", "st": '{"a": 1}'}
    assert parse_arguments(loaded, words) == {
        "s": "7",
        "n": 7,
        "lr": 0.001,
        "on": False,
        "li": [1, 2],
        "st": {"a": 1},
    }
    with pytest.raises(ArgumentError) as error:
        parse_arguments(loaded, {"n": "x", "on": "yes", "li": "1,2", "m": "1"})
    assert str(error.value) == (
        "The argument 'n' is not an int: 'x'.\n"
        "The argument 'on' is not a bool: 'yes'. Write it as true or false.\n"
        "The argument 'li' is not a list: '1,2'. Write it as JSON, such as [0.1, 0.5].\n"
        "There is no parameter 'm'.\n" + DESCRIBED
    )
    assert describe_parameters(loaded) == DESCRIBED.split("\n", 1)[1]


def test_values_that_a_parameter_allows(tmp_path):
    documents = ir(folder=tmp_path)
    documents[0]["root"]["inputDefinitions"]["parameters"]["x"]["literals"] = ["a", "b"]
    with pytest.raises(ArgumentError, match=r"^The argument 'x' is 'c', and may be one of 'a', 'b'\.\n"):
        parse_arguments(pipeline_from_documents(documents, "p.yaml"), {"x": "c"})


def test_options_of_a_run(tmp_path):
    with pytest.raises(ArgumentError, match=r"^parallelism must be an int, 1 or more, and is 0\.$"):
        run(parameters, {"s": ""}, parallelism=0)
    for options, message in (
        ({"parallelism": "3"}, r"^parallelism must be an int, 1 or more, and is '3'\.$"),
        ({"parallelism": 1.5}, r"^parallelism must be an int, 1 or more, and is 1\.5\.$"),
        ({"output_dir": 5}, r"^output_dir must be the path of a folder, and is 5\.$"),
        ({"output_dir": "a\0b"}, r"^The run's folder '.*a\\x00b.*' cannot be made: embedded null byte\. Name another"),
        ({"grace": -1}, r"^grace must be a number of seconds, 0 or more, and is -1\.$"),
        ({"grace": float("inf")}, r"^grace must be a number of seconds, 0 or more, and is inf\.$"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run(parameters, {"s": ""}, **options)
    with pytest.raises(
        ArgumentError, match=r"^arguments must be a dict of names and values, such as \{'lr': 0\.1\}, and"
    ):
        run(parameters, [("s", "")])
    with pytest.raises(ArgumentError, match=r"^There is no parameter 1\.\n"):
        run(parameters, {1: 2})
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ArgumentError, match=r"^The run's folder .* cannot be made: Not a directory\. Name another place"
    ):
        run(parameters, {"s": ""}, output_dir=tmp_path / "file")
    assert issubclass(StageFailedError, LocalRunError)


def test_an_unknown_loop_item_type_is_reported(execute_failing):
    @dsl.pipeline
    def pipeline(rows: List[Dict[str, str]]):
        with dsl.ParallelFor(rows) as row, dsl.ParallelFor(row.items) as item:
            text_of(str, "text-of-str")(x=item)

    result = execute_failing(pipeline, {"rows": [{"items": "no list"}]})
    assert result.stages[0].reason == "loops over something that is not a list: 'no list'"
