"""The corpus: each pipeline ends as its source declares, as it ended on KFP's backend, and as under kfp.local."""

import io

import pytest

from tests.execution.local.corpus import FAMILIES, VERSION, compiled, load_cases
from tests.execution.local.corpus.kfp_local import content_of, is_comparable
from tests.execution.local.corpus.kfp_local import recorded as recorded_under_kfp_local
from tests.execution.local.corpus.recorded import CASES as RECORDED
from tests.execution.local.corpus.recorded import CHOICES, NOT_RUN, differences
from torchx_kfp.errors import UnsupportedPipelineError
from torchx_kfp.local import Lines, run

CASES = [case for family in FAMILIES for case in load_cases(family).values()]
UNDER_KFP_LOCAL = recorded_under_kfp_local()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_corpus(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = check(case)
    if case.name in UNDER_KFP_LOCAL:
        assert end_of(result) == UNDER_KFP_LOCAL[case.name]


def check(case):
    """Run the pipeline and return its result, or check that it is rejected."""
    if case.refused:
        with pytest.raises(UnsupportedPipelineError, match=case.refused):
            run(case.pipeline, case.arguments)
        # Pipelines that the backend can run are not rejected.
        assert case.name not in RECORDED or RECORDED[case.name]["state"] in ("failed", "refused")
        return None
    log = io.StringIO()
    result = run(case.pipeline, case.arguments, watch=Lines(log), cache=False)
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
    if case.name in RECORDED:
        # A choice that is not needed any more must be removed.
        assert bool(differences(result, case.name)) == (case.name in CHOICES), differences(result, case.name)
    return result


def end_of(result):
    """Return how a run ended, in the form of ``kfp_local.run_case``."""
    if result.state == "failed":
        return {"state": "failed"}
    return {
        "state": str(result.state),
        "outputs": dict(result.outputs),
        "artifacts": {name: content_of(made) for name, made in result.artifacts.items()},
    }


def test_what_is_recorded_is_of_what_is_compiled():
    assert compiled.recorded() == compiled.digests(), "run `make goldens`, and look at what has changed"
    assert UNDER_KFP_LOCAL.keys() == {case.name for case in CASES if is_comparable(case)}, "run `make goldens`"


@pytest.mark.versions
@pytest.mark.parametrize("family", FAMILIES)
def test_what_other_versions_of_kfp_compile(family, tmp_path, monkeypatch):
    """A pipeline that they compile to the same text need only run once, with the usual version."""
    recorded = compiled.recorded()
    for number, case in enumerate(load_cases(family).values()):
        if compiled.digest(case) != recorded.get(case.name):
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            check(case)


def test_the_backend_has_run_every_pipeline_that_it_could():
    names = {case.name for case in CASES}
    assert not RECORDED.keys() & NOT_RUN.keys()
    assert RECORDED.keys() >= CHOICES.keys()
    newer = {"exits.after_a_handler"} if VERSION >= (2, 17) else set()
    assert names - newer == (RECORDED.keys() | NOT_RUN.keys()) & names


def text_of(artifact):
    if isinstance(artifact, list):
        return [text_of(item) for item in artifact]
    with open(artifact.path) as file:
        return file.read()
