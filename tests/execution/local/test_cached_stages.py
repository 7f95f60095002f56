"""KFP's cache: a stage that has succeeded in an earlier run does not run again."""

import os
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.execution.local.components import scripts, shell, shell_out
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.errors import ArgumentError
from torchx_kfp.local import RunResult, State, Watch, attach, run
from torchx_kfp.tracking.record_tracker import RecordTracker


@pytest.fixture
def states(tmp_path, monkeypatch):
    """Run a pipeline in the folder of the test, and return the states of its stages."""
    monkeypatch.chdir(tmp_path)

    def function(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> list[str]:
        result = attempt(pipeline, arguments, **options)
        result.raise_for_failure()
        return [str(stage.state) for stage in result.stages]

    return function


def attempt(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
    return run(pipeline, arguments, output_dir="runs", watch=Watch(), **options)


@dsl.pipeline
def chain(text: str = "a") -> str:
    first = shell_out(script=f'printf {text} > "$0"; echo made')
    second = shell_out(script=f'printf {first.output}b > "$0"')
    return second.output


def test_a_second_run_takes_what_the_first_has_made(states):
    first = attempt(chain)
    second = attempt(chain)
    assert [stage.state for stage in second.stages] == [State.CACHED, State.CACHED]
    assert second.state is State.SUCCEEDED
    assert second.outputs == first.outputs == {"Output": "ab"}
    stage = second.stages[0]
    assert (stage.cached_from, stage.attempts, stage.last_lines()) == (first.run_id, 0, ["made"])
    assert states(chain, cache=False) == ["succeeded"] * 2
    assert states(chain, {"text": "x"}) == ["succeeded"] * 2
    assert states(chain) == ["cached"] * 2


def test_what_the_key_covers(states, tmp_path, monkeypatch):
    def changed(script: str = "echo", env: dict[str, str] | None = None, image: str = "a", **options: Any) -> list[str]:
        @dsl.container_component
        def component(out: dsl.OutputPath(str)):
            return dsl.ContainerSpec(image=image, command=["sh", "-c", f'{script} > "$0"'], args=[out])

        @dsl.pipeline
        def pipeline():
            task = component()
            kubernetes.use_secret_as_env(task, "keys", {"token": "TOKEN"})
            for name, value in (env or {}).items():
                task.set_env_variable(name, value)

        return states(pipeline, **options)

    monkeypatch.setenv("TOKEN", "one")
    assert changed() == ["succeeded"]
    assert changed() == ["cached"]
    assert changed(secrets={"keys": {"token": "three"}}) == ["succeeded"]
    monkeypatch.setenv("TOKEN", "two")
    assert changed() == ["succeeded"]
    assert changed(script="echo 2") == ["succeeded"]
    assert changed(env={"A": "1"}) == ["succeeded"]
    assert changed(env={"A": "2"}) == ["succeeded"]
    assert changed(env={"A": "1"}) == ["cached"]
    assert changed(image="b") == ["succeeded"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "runs").symlink_to(tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert changed() == ["succeeded"]


def test_a_stage_that_uses_the_workspace_or_cleans_up_is_run(states, tmp_path):
    if not hasattr(dsl, "WorkspaceConfig"):
        pytest.skip("this kfp has no workspaces")

    @dsl.pipeline(pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def pipeline():
        with dsl.ExitHandler(shell(script="echo clean up")):
            shell(script=f"touch {dsl.WORKSPACE_PATH_PLACEHOLDER}/file")

    assert states(pipeline) == ["succeeded"] * 2
    assert states(pipeline, kfp_workspace=tmp_path / "shared") == ["succeeded"] * 2
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=says("another place for it: kfp_workspace", "File exists")):
        run(pipeline, output_dir=tmp_path / "none", kfp_workspace=tmp_path / "file")
    assert not [*(tmp_path / "none").glob("*")], "nothing was begun"


def test_what_is_not_cached(states, tmp_path):
    @dsl.pipeline
    def pipeline():
        shell(script="true").set_caching_options(False)
        shell(script="exit $(test -e mended; echo $?)")

    failed = attempt(pipeline)
    assert [str(stage.state) for stage in failed.stages] == ["succeeded", "failed"]
    (tmp_path / "mended").touch()
    assert states(pipeline) == ["succeeded"] * 2
    assert states(pipeline) == ["succeeded", "cached"]


def test_a_stage_that_has_failed_though_it_may_is_not_cached(states):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([0, 3]) as code:
            app = AppDef("app", [Role("role", image="x", entrypoint="sh", args=["-c", 'exit "$1"', "sh", f"{code}"])])
            task_from_app(app, tracker_base="results", may_fail=True)

    assert states(pipeline) == ["succeeded", "failed (allowed)"]
    assert states(pipeline) == ["cached", "failed (allowed)"]


def test_a_stage_that_must_not_fail_may_record_an_exit_code(states):
    @dsl.pipeline
    def pipeline():
        code = "from torchx_kfp.tracking import current_run as run; run().put(exit_code=3)"
        role = Role("role", image="x", entrypoint="python", args=["-c", code])
        task_from_app(AppDef("app", [role]), tracker_base="results")

    assert [states(pipeline), states(pipeline)] == [["succeeded"], ["cached"]]


def test_a_key_of_the_authors_own(states):
    """It stands for the inputs and the command of one component in one pipeline: others may have the same."""

    @dsl.container_component
    def other(out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="x", command=["sh", "-c", 'printf other > "$0"', out])

    def pipeline_with(text: str, key: str, name: str = "one") -> Any:
        @dsl.pipeline(name=name)
        def pipeline() -> NamedTuple("Outputs", [("first", str), ("second", str)]):
            tasks = [shell_out(script=f'printf {text} > "$0"'), other()]
            for task in tasks:
                try:
                    task.set_caching_options(True, cache_key=key)
                except TypeError:
                    pytest.skip("this kfp has no keys for caching")
            return NamedTuple("Outputs", [("first", str), ("second", str)])(*(task.output for task in tasks))

        return pipeline

    assert states(pipeline_with("a", "data-1")) == ["succeeded"] * 2
    again = attempt(pipeline_with("b", "data-1"))
    assert [str(stage.state) for stage in again.stages] == ["cached"] * 2
    assert again.outputs == {"first": "a", "second": "other"}
    assert states(pipeline_with("b", "data-2")) == ["succeeded"] * 2
    assert states(pipeline_with("b", "data-1", name="two")) == ["succeeded"] * 2


@dsl.container_component
def make(data: dsl.Output[dsl.Artifact]):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'mkdir "$0"; echo 1 > "$0/file"'], args=[data.path])


@dsl.container_component
def use(data: dsl.Input[dsl.Artifact], script: str = ":"):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", script, data.path])


def test_an_artifact_that_is_gone_is_made_again_and_one_that_a_stage_has_changed_is_not(states):
    @dsl.pipeline
    def pipeline(script: str):
        use(data=make().outputs["data"], script=script)

    made = attempt(pipeline, {"script": ":"})["make"].artifacts["data"]
    assert states(pipeline, {"script": ":"}) == ["cached"] * 2
    Path(made.path, "file").unlink()
    changes = {"script": 'echo 2 >> "$0/file"'}
    assert states(pipeline, changes) == ["succeeded"] * 2
    assert states(pipeline, changes) == ["cached"] * 2


def test_an_imported_file_that_has_changed(states, tmp_path_factory):
    data = tmp_path_factory.mktemp("elsewhere") / "data"  # in the directory of the stages, it would be their code

    @dsl.pipeline
    def pipeline():
        use(data=dsl.importer(artifact_uri=str(data), artifact_class=dsl.Artifact).output)

    data.write_text("1")
    assert states(pipeline) == ["succeeded"] * 2
    assert states(pipeline) == ["succeeded", "cached"]
    data.write_text("22")
    assert states(pipeline) == ["succeeded"] * 2


def test_what_another_execution_has_made_is_another_artifact(states):
    @dsl.pipeline
    def pipeline():
        made = make()
        made.set_caching_options(False)
        use(data=made.outputs["data"])

    assert [states(pipeline), states(pipeline)] == [["succeeded"] * 2] * 2


def test_stages_of_one_run_that_are_alike_are_each_run(states):
    # What a stage writes into the directory in which it starts would count as its code.
    alike = scripts(*["echo x >> runs/notes"] * 2, chained=True)
    assert states(alike) == ["succeeded"] * 2
    assert states(alike) == ["cached"] * 2


def test_a_signal_ends_a_run_while_a_store_is_silent(tmp_path, monkeypatch):
    """A server of S3 may take minutes to answer, or to count as gone."""

    @dsl.pipeline
    def tracked():
        role = Role("train", image="image:1", entrypoint="true")
        task_from_app(AppDef("train", roles=[role]), tracker_base=str(tmp_path / "results"), may_fail=True)

    monkeypatch.chdir(tmp_path)
    attempt(tracked).raise_for_failure()
    patience, answered = threading.Event(), []

    def keys(*_: Any) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        patience.wait(120)
        answered.append(True)
        return []

    monkeypatch.setattr(RecordTracker, "keys", keys)
    with pytest.raises(KeyboardInterrupt):
        attempt(tracked)
    assert not answered
    patience.set()
    assert [(stage.state, stage.reason) for stage in attach(output_dir="runs").read().run.ends] == [
        (State.NOT_RUN, "was not run: the run was ended")
    ]
