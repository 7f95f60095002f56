"""The ways into a local run, and what it tells a listener. What pipelines can express is in ``tests/cases``."""

import re

import pytest

from tests.execution.local.components import scripts
from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs.history import find_run
from torchx_kfp.local import Watch, run


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
