"""The size of the workflow that KFP's backend creates: the model, and the sizes of this project's stages."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl

from tests.adapter.apps import compile_pipeline, make_app
from torchx_kfp import task_from_app
from torchx_kfp.adapter.stage.carried import PUBLISHER
from torchx_kfp.semantics.workflow import LEVEL_LIMIT, LIMIT, Size, describe, measure

RECORDED = Path(__file__).parent / "recorded" / "pipeline.yaml"


@pytest.fixture(autouse=True)
def _libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let KFP's compiler write with libyaml, in a seventh of the time: only the data of the text count here."""
    monkeypatch.setattr(yaml, "dump_all", functools.partial(yaml.dump_all, Dumper=yaml.CDumper))


def chain(count: int, app: Callable[[int], Any] | None = None, **options: Any) -> str:
    """Return tracked stages with one read and one result each."""

    def pipeline(tracker_base: str = "s3://bucket/results") -> None:
        previous = None
        for number in range(count):
            made = (app or numbered)(number)
            previous = task_from_app(
                made, tracker_base=tracker_base, reads=previous, **{"results": {"accuracy": float}, **options}
            )

    return compile_pipeline(pipeline, "chain")


def numbered(number: int) -> Any:
    return make_app(
        f"train-{number}", image="example/app:1", entrypoint="python", args=["-m", "app.train", "--fold", str(number)]
    )


chains = functools.cache(chain)


def test_a_recorded_workflow() -> None:
    """The workflow that KFP 2.17 created from this pipeline had 54,153 bytes of JSON when it started."""
    size = measure(RECORDED.read_text(encoding="utf-8"))
    assert size.workflow == pytest.approx(54_153, rel=0.001)
    assert (size.level, size.tasks) == (2_896, 6)
    assert size.stages == 7, "one of them in a loop of two iterations, one in a branch that was not taken"
    # It had 26,836 bytes of state at its end.
    assert 10_000 < size.state < 30_000


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "image"])
@pytest.mark.parametrize("count", [100, 200, 300])
def test_what_a_stage_takes(count: int, inline: bool) -> None:
    size = measure(chains(count, inline=inline))
    assert size.stages == size.tasks == count
    assert size.workflow / count < 2_250, "bytes a stage; the goal is 2,400"
    assert size.level < LEVEL_LIMIT


def test_how_many_stages_run_to_their_end() -> None:
    size = measure(chains(300, inline=True))
    assert 275 < 300 / size.share < 300


def test_the_carried_program_is_there_once() -> None:
    inline, image = (measure(chains(200, inline=inline)).workflow for inline in (True, False))
    assert inline - image < 2.5 * len(PUBLISHER), "of the first stage, which reads nothing, and of the others"


def test_labels_cost_as_much_as_a_stage() -> None:
    labelled, plain = (measure(chain(100, **options)).workflow for options in ({"labels": True}, {}))
    assert 1_300 < (labelled - plain) / 100 < 1_600


def test_values_of_stages_cost_twice_their_length() -> None:
    def app(number: int, length: int) -> Any:
        return make_app(f"train-{number}", args=["--text", f"{number:0{length}}"])

    short, long = (measure(chain(100, functools.partial(app, length=length))).workflow for length in (10, 110))
    assert 190 < (long - short) / 100 < 230


def test_loops_branches_and_nested_pipelines() -> None:
    @dsl.pipeline(name="inner")
    def inner(tracker_base: str) -> None:
        task_from_app(make_app("deep"), tracker_base=tracker_base)

    def pipeline(items: list, flag: bool = True, tracker_base: str = "/tmp") -> None:
        with dsl.ParallelFor([1, 2, 3]):
            inner(tracker_base=tracker_base)
        with dsl.ParallelFor(items):
            task_from_app(make_app("unknown"), tracker_base=tracker_base)
        with dsl.If(flag == True):  # noqa: E712
            inner(tracker_base=tracker_base)

    size = measure(compile_pipeline(pipeline))
    assert size.stages == 5
    assert size.tasks == 3


def test_untracked_pipelines() -> None:
    size = measure(compile_pipeline(lambda: task_from_app(make_app()) and None))
    assert (size.stages, size.tasks) == (1, 1)
    assert 0 < size.share < 0.02
    assert size.workflow < LIMIT


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (Size(100, 210_000, 165_000, 39_000, 100), []),
        (Size(212, 520_000, 424_000, 90_000, 212), ["212 stages, about 0.9 of the 1 MiB that Argo accepts for a run."]),
        (
            Size(320, 700_000, 640_000, 130_000, 320),
            ["Warning: 320 stages need about 1.3 times the 1 MiB .*: the run fails before its end. Split it into "],
        ),
        (Size(600, 1_300_000, 990_000, 50_000, 60), ["600 stages need about 2.2 times the 1 MiB .*: KFP rejects it"]),
        (
            Size(1, 140_000, 1_000, 131_072, 350),
            ["one level has 350 tasks, which take 131072 bytes.* in one argument, .*put some of them into a nested"],
        ),
    ],
)
def test_what_is_said(size: Size, said: list[str]) -> None:
    found = describe(size)
    assert len(found) == len(said)
    for remark, pattern in zip(found, said, strict=True):
        assert re.search(pattern, remark)
