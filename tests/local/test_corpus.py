"""The corpus: each pipeline ends as its source says."""

import io

import pytest

from tests.local.corpus import FAMILIES, load_cases
from torchx_kfp.errors import UnsupportedPipelineError
from torchx_kfp.local import run

CASES = [case for family in FAMILIES for case in load_cases(family).values()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_corpus(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if case.refused:
        with pytest.raises(UnsupportedPipelineError, match=case.refused):
            run(case.pipeline, case.arguments)
        return
    log = io.StringIO()
    result = run(case.pipeline, case.arguments, stream=log)
    stages = {stage.name: stage for stage in result.stages}
    said = log.getvalue()
    assert result.state == case.state, said
    for name, expected in case.stages.items():
        assert name in stages, said
        stage = stages[name]
        if isinstance(expected, str):
            assert stage.state == expected, f"{name}: {said}"
        else:
            assert stage.state == "succeeded", f"{name}: {said}"
            assert {key: stage.outputs.get(key) for key in expected} == expected, name
    assert {name: result.outputs.get(name) for name in case.outputs} == case.outputs
    assert {name: text_of(result.artifacts[name]) for name in case.artifacts} == case.artifacts


def text_of(artifact):
    if isinstance(artifact, list):
        return [text_of(item) for item in artifact]
    with open(artifact.path) as file:
        return file.read()
