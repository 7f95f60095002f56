"""What stages were started with, as KFP's drivers have decided it: in recorded manifests, and in those of tests."""

from __future__ import annotations

import dataclasses
import json

import pytest
from torchx_kfp_dev_host.pod_spec import pod_spec_patch

from tests.execution.host.answers_of_kfp import last, manifest
from tests.execution.host.event_logs import answers, replaying
from torchx_kfp.execution.host.nodes import PodSpec, manifest_of, read_manifest
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_text
from torchx_kfp.execution.runs.source import place_of

#: The stages with a pod in recorded runs. A cached stage has none.
STAGES = {
    "succeeded": {"first", "deploy", "trial[0]", "trial[1]", "inner/sleeper", "last"},
    "failed": {"inner/sleeper"},
    "cached": set(),
    "retried": {"first", "second", "third"},
    "stuck": {"no-image", "too-large"},
    "no-program": {"plain"},
    "imported": {"use-2"},
}
#: KFP's launcher fills it in.
EXECUTOR_INPUT = "{{$}}"


@pytest.mark.parametrize("name", STAGES)
def test_the_recorded_pods_are_those_that_the_pipeline_describes(name: str) -> None:
    """A component with the recorded inputs gives the recorded command and image, and so does the host of the tests."""
    recorded = read_manifest(manifest_of(manifest(name)))
    pipeline = RunPipeline.of(last(name))
    assert pipeline is not None
    patches = Snapshot.of(last(name), pipeline, recorded).patches
    found = {stage: PodSpec.parse(patch) for stage, patch in patches.items()}
    assert found.keys() == STAGES[name]
    for stage, spec in found.items():
        component = place_of(pipeline.pipeline, stage, {}).component
        assert component.container is not None
        inputs = spec.inputs(component)
        assert inputs.keys() >= component.parameter_inputs.keys()
        facts = PlaceholderValues(parameters=inputs)
        words = [word if word == EXECUTOR_INPUT else resolve_text(word, facts) for word in component.container.words]
        assert (list(spec.words), spec.image) == (words, resolve_text(component.container.image, facts))
        made = PodSpec.parse(pod_spec_patch(component, inputs))
        kept = {"inputs": spec.executor_input["inputs"]}
        assert made == dataclasses.replace(spec, executor_input=kept)
        given = {"inputs": {"artifacts": {"../../harm": {"artifacts": [{"uri": "s3://bucket/file"}]}}}}
        assert PodSpec("app:1", ("true",), given).inputs(component) == {}, "the stage has no such input"


def test_an_artifact_that_was_imported_has_a_type() -> None:
    with replaying("imported") as replayed:
        replayed.see(*answers("imported")[-1])
        given = replayed.run.invocation("use-2")
    assert given.inputs["model"].type.title == "system.Model"


@pytest.mark.parametrize(
    "patch",
    [
        *("{", "[]", '{"containers": []}', '{"containers": [{"command": ["a"]}]}'),
        '{"containers": [{"command": ["--executor_input", "[]", "--"]}]}',
        *(
            json.dumps({"containers": [{"image": image, "command": ["--executor_input", given, "--", *words]}]})
            for image, words, given in [
                ("app:1", [], "{}"),
                ("--privileged", ["true"], "{}"),
                ("app\x1b[31m", ["true"], "{}"),
                ("app:1", ["\ud800"], "{}"),
                ("app:1", [["true"]], "{}"),
                ("app:1", ["true"], "[]"),
            ]
        ),
    ],
)
def test_a_patch_that_no_driver_makes_is_refused(patch: str) -> None:
    with pytest.raises(ValueError, match="an unknown form"):
        PodSpec.parse(patch)
