"""Settings give tracked stages on KFP what they need to reach the tracker base: see ``host.storage``."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp import Stages
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.host.settings import Settings, read_settings
from torchx_kfp.execution.host.storage import submitted_documents
from torchx_kfp.execution.host.submission import check_submission
from torchx_kfp.execution.pipeline.load import load_pipeline, pipeline_from_documents
from torchx_kfp.host import submit
from torchx_kfp.local import Watch

SETTINGS = Settings(
    storage_variables="AWS_ENDPOINT_URL=http://store:9000 'AWS_REGION=a b'",
    storage_secret="storage accesskey=AWS_ACCESS_KEY_ID secretkey=AWS_SECRET_ACCESS_KEY",
)
PLAIN = {"AWS_ENDPOINT_URL": "http://store:9000", "AWS_REGION": "a b"}
KEYS = {"AWS_ACCESS_KEY_ID": ("storage", "accesskey"), "AWS_SECRET_ACCESS_KEY": ("storage", "secretkey")}


def app(name: str, *args: str, **role: Any) -> AppDef:
    return AppDef(name, [Role("r", image="i", entrypoint=sys.executable, args=[*args], **role)])


@dsl.pipeline(name="several")
def several(tracker_base: str):
    stages = Stages(tracker_base=tracker_base)
    stages.task(app("tracked"), results={})
    stages.task(app("replicas", num_replicas=2), engine="job", results={})
    stages.task(app("pinned", env={"AWS_ENDPOINT_URL": "http://own:1"}))
    Stages(tracker_base=tracker_base, secrets={"own": {"id": "AWS_ACCESS_KEY_ID"}}).task(app("keyed"))
    Stages().task(app("untracked"))
    kubernetes.use_secret_as_env(stages.task(app("mapped")), "own", {"id": "AWS_ACCESS_KEY_ID"})


def variables(settings: Settings) -> dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]]:
    """Return the variables that each stage's container gets, and those from secrets."""
    pipeline = load_pipeline(several)
    documents = submitted_documents(pipeline, settings)
    found = pipeline_from_documents([one for one in documents if one], "p")
    return {
        name.removeprefix("comp-"): (
            dict(component.container.env),
            {
                key["envVar"]: (secret["secretName"], key["secretKey"])
                for secret in component.platform.get("secretAsEnv", ())
                for key in secret["keyToEnv"]
            },
        )
        for name, component in found.components.items()
        if component.container is not None
    }


def test_tracked_stages_get_what_they_do_not_have():
    found = variables(SETTINGS)
    own = {**KEYS, "AWS_ACCESS_KEY_ID": ("own", "id")}
    assert found == {
        "tracked": (PLAIN, KEYS),
        "replicas": (PLAIN, KEYS),
        "pinned": ({"AWS_REGION": "a b"}, KEYS),
        "keyed": (PLAIN, own),
        "mapped": (PLAIN, own),
        "untracked": ({}, {}),
    }
    pipeline = load_pipeline(several)
    assert submitted_documents(pipeline, Settings()) == pipeline.documents


def test_a_pipeline_that_has_them_gets_them_once():
    pipeline = load_pipeline(several)
    once = submitted_documents(pipeline, SETTINGS)
    again = pipeline_from_documents([*once], "p")
    assert submitted_documents(again, SETTINGS) == once


def test_an_address_here_is_no_finding_with_one_of_the_cluster():
    here = {"AWS_ENDPOINT_URL": "http://localhost:9000", "HOME": "/nowhere"}
    pipeline = load_pipeline(several)
    arguments = {"tracker_base": "s3://bucket/results"}

    def check(environ):
        return check_submission(pipeline, arguments, read_settings(environ=environ), environ)

    found = check(here)
    assert [str(one) for one in found if "TORCHX_KFP_STORAGE_VARIABLES=AWS_ENDPOINT_URL=http://seaweedfs" in str(one)]
    there = {"TORCHX_KFP_STORAGE_VARIABLES": "AWS_ENDPOINT_URL=http://store:9000"}
    assert not [str(one) for one in check({**here, **there}) if "S3" in str(one)]
    wrong = {"TORCHX_KFP_STORAGE_VARIABLES": "AWS_ENDPOINT_URL=http://[::1]:9000"}
    found = [str(one) for one in check({**here, **wrong})]
    assert [one for one in found if "'tracked'" in one and "is the pod itself on KFP" in one]
    assert not [one for one in found if "'pinned'" in one]


@pytest.mark.parametrize("secret", ["storage", "accesskey=A secretkey=B", "storage key", "storage key=A-B", "'storage"])
def test_a_secret_has_a_form(secret: str):
    with pytest.raises(HostSettingsError, match=says("storage_secret", "A-B" if "A-B" in secret else "accesskey=")):
        variables(Settings(storage_secret=secret))


@pytest.mark.parametrize("text", ["AWS_REGION", "=x", "A=1 B"])
def test_variables_have_a_form(text: str):
    with pytest.raises(HostSettingsError, match=says("storage_variables", text, "AWS_ENDPOINT_URL=http")):
        variables(Settings(storage_variables=text))


def test_a_submitted_stage_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_base: str):
    @dsl.pipeline(name="one")
    def one(tracker_base: str):
        Stages(tracker_base=tracker_base).task(app("one", "-c", "import os; print(os.environ['OF_STORAGE'])"))

    assert "OF_STORAGE" not in os.environ
    monkeypatch.setenv("TORCHX_KFP_STORAGE_VARIABLES", "OF_STORAGE=here")
    with KfpHost(tmp_path / "host") as host:
        run = submit(one, {"tracker_base": s3_base}, host=host.url)
        run.wait(Watch()).raise_for_failure()
        assert run.logs("one") == "here\n"
