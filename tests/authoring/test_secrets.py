"""Kubernetes secrets as variables of a stage: in the compiled pipeline, and in the application."""

import pytest

from tests.authoring.apps import compile_pipeline, load, make_app
from torchx_kfp import (
    component_from_app,
    component_spec_from_app,
    task_from_app,
)

SECRETS = {"s3": {"user": "AWS_ACCESS_KEY_ID", "pass": "AWS_SECRET_ACCESS_KEY"}, "hub": {"token": "HF_TOKEN"}}


def in_platform(compiled: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return ``{executor: {secret: {key: variable}}}`` for a compiled pipeline."""
    return {
        executor: {
            entry["secretNameParameter"]["runtimeValue"]["constant"]: {
                pair["secretKey"]: pair["envVar"] for pair in entry["keyToEnv"]
            }
            for entry in settings.get("secretAsEnv", ())
        }
        for executor, settings in load(compiled)[1].items()
    }


@pytest.mark.parametrize("tracked", [True, False])
def test_secrets_of_a_task(tracked: bool) -> None:
    def pipeline(tracker_base: str) -> None:
        task_from_app(make_app("with"), tracker_base=tracker_base if tracked else None, secrets=SECRETS)
        task_from_app(make_app("without"), tracker_base=tracker_base if tracked else None, secrets={})

    found = in_platform(compile_pipeline(pipeline))
    # An untracked stage without secrets has no settings for Kubernetes.
    assert {name: secrets for name, secrets in found.items() if secrets} == {"exec-with": SECRETS}


def test_variables_of_the_protocol_are_those_of_an_untracked_stage() -> None:
    component_from_app(make_app(), secrets={"s": {"k": "TORCHX_JOB_ID", "l": "KFP_RUN_ID"}})


def test_variables_of_shell_programs_make_way() -> None:
    """A channel in a shell program becomes a variable, but not one that contains a secret."""

    def pipeline(text: str) -> None:
        app = make_app(entrypoint="sh", args=["-c", f"echo '{text}'"])
        task_from_app(app, secrets={"s": {"key": "TORCHX_KFP_TEXT"}})

    (executor,) = load(compile_pipeline(pipeline))[0]["deploymentSpec"]["executors"].values()
    assert executor["container"]["command"][1].startswith("TORCHX_KFP_TEXT_2=")


def test_secrets_are_no_part_of_the_command() -> None:
    """KFP's cache key covers the command."""
    with_secrets, without = (component_spec_from_app(make_app(), secrets=secrets) for secrets in (SECRETS, None))
    assert with_secrets != without
    assert load(with_secrets)[0] == load(without)[0]
