"""What a dry run says is what the run does."""

from pathlib import Path
from typing import Any, Optional

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.local.test_stale_code import write
from torchx_kfp import Stages
from torchx_kfp.execution.local.runner import dry_run
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.runs.prepared_run import prepare
from torchx_kfp.local import Watch, run

LOSS = "from torchx_kfp.tracking import current_run\nimport sys\ncurrent_run().put(loss=float(sys.argv[1]))\n"


def python(name: str, *args: str, **role: Any) -> AppDef:
    return AppDef(name, [Role("r", image="x", entrypoint="python", args=[*args], **role)])


@dsl.pipeline(name="trials")
def trials(tracker_base: str, rates: list = [0.1, 0.2], note: str = "a") -> None:  # noqa: B006 (a constant to KFP)
    stages = Stages(tracker_base=tracker_base)
    prepare = stages.task(python("prepare", "prepare.py", note))
    with dsl.ParallelFor(rates) as rate:
        train = stages.task(python("train", "train.py", f"{rate}"), reads=prepare, results={"loss": float})
    choose = stages.task(
        python("choose", "choose.py", "1"),
        reads={"all": dsl.Collected(train.outputs["run_id"])},
        results={"loss": float},
    )
    with dsl.If(choose.outputs["loss"] > 0):
        stages.task(python("good", "choose.py", "2"))
    with dsl.If(choose.outputs["loss"] < 0):
        stages.task(python("bad", "choose.py", "3"))
    stages.task(python("uncached", "choose.py", "4"), cache=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"prepare.py": "import data", "data.py": "", "train.py": LOSS, "choose.py": LOSS})
    return tmp_path


def said(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, str]:
    fresh = options.pop("fresh", ())
    given = {"tracker_base": "results", **(arguments or {})}
    loaded = load_pipeline(pipeline)
    given = {name: value for name, value in given.items() if name in loaded.root.parameter_inputs}
    prepared = prepare(loaded, given, directory=".", without=["runs"], fresh=fresh)
    return dict(dry_run(prepared, output_dir="runs", **options))


def test_an_optional_parameter_without_a_value(project: Path) -> None:
    """The driver leaves an optional input without a value out."""

    @dsl.container_component
    def optional(text: Optional[str] = None):  # type: ignore[no-untyped-def]  # noqa: UP045 (for the oldest kfp)
        return dsl.ContainerSpec("x", ["sh", "-c", 'echo "$0"'], [dsl.IfPresentPlaceholder("text", text, "none")])

    @dsl.pipeline
    def pipeline(text: Optional[str] = None) -> None:  # noqa: UP045 (for the oldest kfp)
        optional(text=text)

    assert said(pipeline) == {"optional": "runs: it has not run yet"}


def test_each_reason(project: Path) -> None:
    everything = ("prepare", "train[0]", "train[1]", "choose", "good", "bad", "uncached")
    first = said(trials)
    assert first == {
        "prepare": "runs: it has not run yet",
        "train[0]": "runs: it reads prepare",
        "train[1]": "runs: it reads prepare",
        "choose": "runs: it reads train[0]",
        "good": "depends on choose",
        "bad": "depends on choose",
        "uncached": "runs: its cache is turned off",
    }
    done = run(trials, {"tracker_base": "results"}, output_dir="runs", watch=Watch())
    cached = f"cached (from {done.run_id})"
    kept = {
        **dict.fromkeys(everything, cached),
        "bad": "skipped: its condition is false",
        "uncached": first["uncached"],
    }
    assert said(trials) == kept
    assert said(trials, cache=False) == {
        **dict.fromkeys(everything, "runs: --no-cache"),
        "good": "depends on choose",
        "bad": "depends on choose",
    }
    assert said(trials, {"rates": [0.1, 0.9]})["train[1]"] == "runs: item '0.2' -> '0.9'"
    assert said(trials, {"note": "b"})["prepare"] == "runs: note 'a' -> 'b'"
    fresh = dict.fromkeys(["train[0]", "train[1]"], "runs: --fresh")
    assert said(trials, fresh=["train"]) == {**first, "prepare": cached, **fresh}
    write(project, {"data.py": "V = 1"})
    assert said(trials) == {**first, "prepare": "runs: data.py changed"}
    write(project, {"train.py": f"{LOSS}sys.exit(3)"})
    run(trials, {"tracker_base": "results"}, output_dir="runs", watch=Watch())
    assert said(trials)["train[0]"] == "runs: it failed"


def test_what_is_gone_runs(project: Path) -> None:
    done = run(trials, {"tracker_base": "results"}, output_dir="runs", watch=Watch())
    (done.folder / "prepare_1" / "log.txt").unlink()
    assert said(trials)["prepare"] == f"runs: its outputs in {done.run_id} are missing or changed"
