"""Each case ends here as its source declares, and as it ended on KFP's backend."""

import inspect
import io
from pathlib import Path

import pytest

from tests.cases import FAMILIES, load_cases
from tests.cases.recorded import CASES as RECORDED
from tests.cases.recorded import differences
from torchx_kfp.errors import PipelineError
from torchx_kfp.local import Lines, run

ROOT = Path(__file__).parents[2]
CASES = [case for family in FAMILIES for case in load_cases(family).values()]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def marked(case):
    return pytest.param(case, id=case.name, marks=[pytest.mark.examples] * ("sklearn" in case.packages))


@pytest.mark.versions
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_case(case):
    """Run the pipeline and check its end, or check that it is rejected."""
    for package in case.packages:
        pytest.importorskip(package, reason="the extra `examples` has what the examples import")
    arguments = dict(case.arguments)
    if "tracker_base" in inspect.signature(case.function).parameters:
        arguments["tracker_base"] = str(Path("results").absolute())
    if case.refused:
        with pytest.raises(PipelineError, match=case.refused):
            run(case.pipeline, arguments)
        # Pipelines that the backend can run are not rejected.
        assert case.name not in RECORDED or RECORDED[case.name]["state"] in ("failed", "refused")
        return
    log = io.StringIO()
    result = run(case.pipeline, arguments, watch=Lines(log), cache=False)
    stages = {stage.name: stage for stage in result.stages}
    said = log.getvalue()
    assert result.state == case.state, said
    for name, expected in case.stages.items():
        assert name in stages, said
        stage = stages[name]
        if isinstance(expected, str):
            assert stage.state == expected, f"{name}: {said}"
        else:
            assert stage.state.is_success, f"{name}: {said}"
            assert {key: stage.outputs.get(key) for key in expected} == expected, name
    for name, expected in case.results.items():
        found = stages[name].results or {}
        assert {key: found.get(key) for key in expected} == expected, f"{name}: {said}"
    for name, parts in case.reasons.items():
        assert all(part in stages[name].reason for part in parts), stages[name].reason
    assert {name: result.outputs.get(name) for name in case.outputs} == case.outputs
    assert {name: text_of(result.artifacts[name]) for name in case.artifacts} == case.artifacts
    if case.check:
        case.check(result)
    if case.name in RECORDED:
        # What is expected to differ, and does not any more, must be removed.
        assert bool(differences(result, case.name)) == bool(case.expected), differences(result, case.name)


def text_of(artifact):
    if isinstance(artifact, list):
        return [text_of(item) for item in artifact]
    with open(artifact.path) as file:
        return file.read()
