"""The run options: what is wrong with them is said, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from torchx.specs import InvalidRunConfigException

from tests.facts import says
from torchx_kfp.authoring.engines import ENGINES, Job, JobSet
from torchx_kfp.entrypoints.scheduler.runopts import OF_CONNECTION, Options, read_options, run_options
from torchx_kfp.execution.host.settings import Submission

pytestmark = pytest.mark.versions


def read(text: str) -> Options:
    options = run_options()
    return read_options(options.resolve(options.cfg_from_str(text)))


def test_nothing_is_required() -> None:
    assert read("") == Options()
    assert read_options(run_options().resolve({})) == Options()


def test_all_options_are_read() -> None:
    assert read(
        "host=https://kfp.example.com:8080/pipeline,namespace=me,tracker_base=s3://bucket/results,experiment=e,name=n,"
        "service_account=runner,pipeline_root=s3://bucket/root,cache=false,engine=jobset,queue=gpus,"
        "secrets=AWS_ACCESS_KEY_ID:s3/accesskey;AWS_SECRET_ACCESS_KEY:s3/secretkey;HF_TOKEN:hf/token"
    ) == Options(
        of_connection={"host": "https://kfp.example.com:8080/pipeline", "namespace": "me"},
        submission=Submission("n", "e", "runner", "s3://bucket/root", cache=False),
        tracker_base="s3://bucket/results",
        engine=JobSet(queue="gpus"),
        secrets={
            "s3": {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"},
            "hf": {"token": "HF_TOKEN"},
        },
    )
    fields = {*Options.__dataclass_fields__, *Submission.__dataclass_fields__} - {"of_connection", "submission"}
    assert {*fields, *OF_CONNECTION, "queue"} == {name for name, _ in run_options()}


@pytest.mark.parametrize(
    ("yes", "no"), [("true", "false"), ("True", "False"), ("yes", "no"), ("1", "0"), ("on", "OFF")]
)
def test_booleans_have_several_words(yes: str, no: str) -> None:
    assert read(f"cache={yes}").submission.cache
    assert not read(f"cache={no}").submission.cache


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("trackerbase=s3://b/r", ["trackerbase", "tracker_base", "Did you mean", "service_account"]),
        ("cache=maybe", ["cache", "maybe", "true or false"]),
        ("engine=jobsets", ["engine", "'jobsets'", "'jobset'", *ENGINES]),
        ("queue=gpus", ["queue", "gpus", "engine=job"]),
        ("engine=job,queue=Not A Queue", ["queue", "'Not A Queue'"]),
        ("secrets=AWS_ACCESS_KEY_ID", ["secrets", "'AWS_ACCESS_KEY_ID'", "VARIABLE:secret/key"]),
        ("secrets=A:s3", ["secrets", "'A:s3'", "VARIABLE:secret/key"]),
        ("secrets=A:s3/key;B:s3/key", ["secrets", "'key'", "'s3'", "A and B"]),
    ],
)
def test_what_is_wrong_is_said(text: str, facts: list[str]) -> None:
    with pytest.raises(InvalidRunConfigException, match=says(*facts)) as caught:
        read(text)
    assert caught.value.cfg_key == facts[0]


@pytest.mark.parametrize("cfg", [{"hots": "x"}, {"cache": "yes"}, {"host": 3}])
def test_options_from_python_are_checked_too(cfg: dict[str, Any]) -> None:
    with pytest.raises(InvalidRunConfigException, match=says(next(iter(cfg)))):
        run_options().resolve(cfg)


def test_an_unknown_option_without_a_value_is_none() -> None:
    """TorchX makes such ones from ``name = None`` in a ``.torchxconfig``."""
    assert read_options(run_options().resolve({"other": None, "engine": "job"})) == Options(engine=Job())
