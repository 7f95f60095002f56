"""The ways into a local run, and what it tells a listener. What pipelines can express is in ``tests/cases``."""

import re
import time

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import python, shell, text_of, write
from tests.watching import Heard
from torchx_kfp.local import StageStarted, State, Watch, run


def test_a_file_and_a_function_run_alike(execute, tmp_path):
    @dsl.pipeline(name="Two Ways")
    def pipeline(x: str = "v") -> str:
        return write(x=x).outputs["out"]

    path = tmp_path / "p.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    for way in (path, str(path), pipeline):
        result = execute(way)
        assert result.outputs == {"Output": "v"}
        assert result.pipeline == "two-ways"
        assert re.fullmatch(r"two-ways-\d{8}-\d{6}-[0-9a-f]{6}", result.run_id)
        assert result.state is State.SUCCEEDED
        assert result.folder == tmp_path / "runs" / result.run_id
        assert [stage.exit_code for stage in result.stages] == [0]


@pytest.mark.filterwarnings("ignore:Compiling to JSON:DeprecationWarning")
def test_a_json_file_has_the_same_numbers(execute, tmp_path):
    @dsl.pipeline
    def pipeline(x: float = 1e-05) -> str:
        with dsl.If(x < 0.5):
            write(x="small")
        return text_of(float, "text-of-float")(x=x).outputs["out"]

    path = tmp_path / "p.json"
    compiler.Compiler().compile(pipeline, str(path))
    result = execute(path)
    assert result.outputs == {"Output": "0.00001"}
    assert [str(stage.state) for stage in result.stages] == ["succeeded", "succeeded"]


def test_events_tell_what_happens(execute):
    @dsl.pipeline
    def pipeline():
        write(x="x")

    events = []
    result = execute(pipeline, watch=Heard(on_event=events.append))
    started, waiting, stage_started, stage_finished, finished = events
    assert (started.pipeline, started.run_id, started.folder) == ("pipeline", result.run_id, result.folder)
    assert (started.not_applied, started.resumed) == ((), False)
    assert (waiting.name, waiting.task) == ("write", "write")
    assert (stage_started.name, stage_started.pod_name, stage_started.attempt) == ("write", "write-0", 1)
    assert (stage_started.log_file, stage_started.inputs) == (result.stages[0].log_file, {"x": "x"})
    assert stage_finished.result == result.stages[0]
    assert (finished.run_id, finished.state, finished.duration) == (result.run_id, State.SUCCEEDED, result.duration)


def test_an_error_in_a_listener_ends_the_run(execute, tmp_path):
    @dsl.pipeline
    def pipeline():
        python(code="import time; time.sleep(60)")

    def listener(event):
        if isinstance(event, StageStarted):
            raise RuntimeError("listener")

    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^listener$"):
        execute(pipeline, watch=Heard(on_event=listener))
    assert time.monotonic() - started < 30


def test_a_watch_that_does_nothing_shows_nothing(tmp_path, capfd):
    @dsl.pipeline
    def pipeline():
        shell(script="echo hello")

    result = run(pipeline, output_dir=tmp_path, watch=Watch())
    assert capfd.readouterr() == ("", "")
    assert result.stages[0].log_file.read_text() == "hello\n"
