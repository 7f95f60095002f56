"""The ways into a local run, and what it tells a listener. What pipelines can express is in ``tests/cases``."""

import re

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import scripts, write
from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs.history import find_run
from torchx_kfp.local import State, Watch, run


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


def test_a_watch_that_does_nothing_shows_nothing(tmp_path, capfd):
    pipeline = scripts("echo hello")
    result = run(pipeline, output_dir=tmp_path, watch=Watch())
    assert capfd.readouterr() == ("", "")
    assert result.stages[0].log_file.read_text() == "hello\n"


def test_a_run_is_found_by_its_name(tmp_path):
    pipeline = scripts("echo hello")
    result = run(pipeline, name="Base.line-2", output_dir=tmp_path, watch=Watch())
    assert re.fullmatch(r"Base\.line-2-\d{8}-\d{6}-[0-9a-f]{6}", result.run_id)
    assert find_run(tmp_path, "Base.line-2") == result.folder


@pytest.mark.parametrize("name", ["a b", "a/b", "-a", "latest", "é", "a" * 201, 7])
def test_a_name_that_cannot_begin_an_id_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=says("The name of a run is", "ASCII letters")):
        run(scripts("echo hello"), name=name, output_dir=tmp_path / "runs", watch=Watch())
    assert not (tmp_path / "runs").exists()
