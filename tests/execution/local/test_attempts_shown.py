"""Attempts of runs on this machine: no command shows what an earlier attempt at a stage has recorded."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult
from torchx_kfp.tracking import FsspecResultTracker

Execute = Callable[..., RunResult]
Call = Callable[..., subprocess.CompletedProcess[str]]

#: Fails in its first attempt, after it has recorded a loss that no other one reaches.
FIT = """
import pathlib, sys
from torchx_kfp.tracking import current_run
starts = pathlib.Path(sys.argv[1])
again = starts.exists()
starts.touch()
run = current_run()
if not again:
    run.put(loss=-100)
    sys.exit(3)
if sys.argv[2:]:
    run.put(loss=float(sys.argv[2]))
"""
READ = "from torchx_kfp.tracking import current_run; current_run().put(read=current_run().parent.results()['loss'])"


def app(name: str, program: str, *args: str, **fields: Any) -> AppDef:
    return AppDef(name, [Role("role", "image:1", entrypoint="python", args=["-c", program, *args], **fields)])


def chain(folder: Path, *losses: str, reads: bool = True, retry: int = 0, **fields: Any) -> Any:
    @dsl.pipeline(name="chain")
    def chain(base: str):
        fit = task_from_app(app("fit", FIT, str(folder / "started"), *losses, **fields), tracker_base=base)
        if retry:
            fit.set_retry(retry)
        if reads:
            task_from_app(app("read", READ), tracker_base=base, reads=fit)

    return chain


@pytest.fixture(params=["max_retries", "set_retry"])
def finished(request: Any, execute: Execute, tmp_path: Path) -> tuple[str, str, str]:
    """A run whose stage has failed once: its id, and the executions of both attempts."""
    arguments = {"base": str(tmp_path / "results")}
    if request.param == "max_retries":
        result = execute(chain(tmp_path, "0.5", max_retries=1), arguments)
    else:
        result = execute(chain(tmp_path, "0.5", retry=2), arguments)
    return result.run_id, "fit_1", "fit_1_2" if request.param == "max_retries" else "fit_2"


def test_only_the_last_attempt_is_shown(finished: tuple[str, str, str], call: Call, tmp_path: Path) -> None:
    run_id, first, last = finished
    fit, read = f"{run_id}/fit/{last}", f"{run_id}/read/read_1"
    rows = {fit: {"loss": 0.5}, read: {"read": 0.5}}
    # Their names look alike, but they are keys of other people.
    own = {f"a/b/c-{number}": {"loss": number} for number in (1, 2)}
    tracker = FsspecResultTracker(tmp_path / "results")
    for key, results in own.items():
        tracker[key] = results

    def shown(*words: str) -> str:
        done = call(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert "-100" not in done.stdout + done.stderr
        return done.stdout

    as_json = ("--json",)
    assert json.loads(shown("results", "--tracker-base", "results", *as_json)) == {**rows, **own}
    assert json.loads(shown("results", "--tracker-base", "results", "--stage", "fit", *as_json)) == {fit: rows[fit]}
    assert [*json.loads(shown("results", "--tracker-base", "results", "--where", "loss < 0.6", *as_json))] == [fit]
    csv = shown("results", "--tracker-base", "results", "--sort", "loss", "--csv").splitlines()
    assert [line.partition(",")[0] for line in csv[1:]] == [fit, *own, read]
    assert re.search(rf"^{run_id} +2 +fit read$", shown("results", "--tracker-base", "results"), re.MULTILINE)
    for words in (["--tracker-base", "results", run_id], [run_id, "--output-dir", "runs"]):
        assert json.loads(shown("results", *words, *as_json)) == rows
        name = [*words[:-1], f"{run_id}/fit"] if words[-1] == run_id else [f"{run_id}/fit", *words[1:]]
        assert json.loads(shown("show", *name, *as_json))["run_id"] == fit
        lineage = json.loads(shown("show", "--lineage", *words, *as_json))
        assert sorted(node["run_id"] for node in lineage["nodes"]) == sorted(rows)
    assert "0.5" in shown("compare", "--tracker-base", "results", run_id, "a")
    named = call("show", "--tracker-base", "results", f"{run_id}/fit/{first}", *as_json)
    assert json.loads(named.stdout)["results"] == {"loss": -100}


@pytest.mark.parametrize("fields", [{"max_retries": 1}, {"retry": 1}])
def test_a_last_attempt_that_records_nothing(
    execute: Execute, call: Call, tmp_path: Path, fields: dict[str, Any]
) -> None:
    execute(chain(tmp_path, reads=False, **fields), {"base": str(tmp_path / "results")})
    done = call("results", "--tracker-base", "results", "--where", "loss < 0")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(says("last attempts", "recorded nothing", "fit/fit_1"), done.stderr)
