"""The output ``pod-spec-patch`` of a stage's driver, as KFP 2.17 makes it from the component and its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_artifact
from torchx_kfp.execution.pipeline.placeholders import resolve_parameters, resolve_pod_text
from torchx_kfp.execution.pipeline.spec import Component


def pod_spec_patch(component: Component, inputs: Mapping[str, Any]) -> str:
    """Return the patch of a stage's pod as JSON; ``inputs`` are all inputs, including artifacts."""
    container = component.container
    assert container is not None
    known = {**dict.fromkeys(component.parameter_inputs), **inputs}
    given: dict[str, Any] = {}
    if values := {name: value for name, value in inputs.items() if not is_artifact(value)}:
        given["parameterValues"] = values
    if artifacts := {name: _message(value) for name, value in inputs.items() if is_artifact(value)}:
        given["artifacts"] = artifacts
    launcher = ["/kfp-launcher/launch", "--executor_input", json.dumps({"inputs": given}), "--"]
    main = {
        "name": "main",
        "image": resolve_pod_text(container.image, known),
        "command": launcher,
        # The launcher fills in the places of artifacts and outputs, and the executor input.
        "args": [resolve_parameters(word, known) for word in container.words],
        "resources": {},
    }
    return json.dumps({"containers": [main]})


def _message(value: Any) -> dict[str, Any]:
    """Return an input: its artifacts have a number of ML Metadata as a name, no type, and KFP's own metadata."""
    store = json.dumps({"Provider": "minio", "Params": {"fromEnv": "true"}}, separators=(",", ":"))
    return {
        "artifacts": [
            {
                "name": "339",
                "type": {"instanceSchema": ""},
                "uri": artifact.uri,
                "metadata": {"display_name": artifact.name, "store_session_info": store, **artifact.metadata},
            }
            for artifact in artifacts_in(value)
        ]
    }
