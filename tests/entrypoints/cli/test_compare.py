"""``torchx-kfp compare``: colors, curves, and the code of runs. Its tables are in ``tests/transcripts``."""

# Annotations are not postponed: kfp reads them as types.

import json
import math
import re
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.entrypoints.cli.conftest import Call
from tests.programs import Program
from tests.transcripts.given import compared
from torchx_kfp import Stages
from torchx_kfp.entrypoints.cli.commands.compare import show_values
from torchx_kfp.local import Watch, run
from torchx_kfp.tracking import FsspecResultTracker


def test_a_terminal_dims_what_is_the_same(call: Program, project: Path) -> None:
    compared(project / "base")
    shown = call.terminal(200, "compare", "--tracker-base", "base", "one", "two").read().splitlines()
    dim = [re.sub(r"\x1b\[\d*m", "", line).split() for line in shown if line.startswith("\x1b[2m")]
    assert [words[1] for words in dim] == ["rows", "bound", "optimizer", "seed", "note"]
    plain = call.terminal(200, "compare", "--tracker-base", "base", "one", "two", NO_COLOR="1").read()
    assert "\x1b" not in plain


def test_stages_have_their_names_of_other_tables(call: Program, project: Path) -> None:
    tracker = FsspecResultTracker(str(project / "base"))
    for loss, run_id in enumerate(("one", "two")):
        tracker[f"{run_id}/fit_model/fit-model_1"] = {"loss": loss}
    shown = call("compare", "--tracker-base", "base", "one", "two")
    assert shown.stdout.splitlines()[-1].split() == ["fit-model", "loss", "0", "1", "+1"]
    (row,) = json.loads(call("compare", "--tracker-base", "base", "one", "two", "--json").stdout)["rows"]
    assert row["stage"] == "fit_model"  # a part of the execution ids


@dsl.pipeline(name="coded")
def coded(tracker_base: str, workspace: str = ""):
    app = AppDef("a", [Role("r", image="i", entrypoint="true")])
    Stages(tracker_base=tracker_base, workspace=workspace).task(app)


def test_the_code_of_runs(project: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "code").mkdir()

    def record(text: str = "") -> str:
        (project / "code" / "app").write_text(text)
        sent = {"workspace": project / "code"} if text else {}
        run_id = run(coded, {"tracker_base": "base"}, watch=Watch(), cache=False, **sent).run_id
        FsspecResultTracker("base")[f"{run_id}/a/1"] = {"x": 1}
        return run_id

    none, one, two, same = record(), record("1"), record("2"), record("1")
    digests = {path.stem for path in (project / "base/.torchx_kfp/workspaces").iterdir()}

    def code(*names: str) -> dict[str, list[str]]:
        rows = json.loads(call("compare", "--tracker-base", "base", *names, "--changed", "--json").stdout)["rows"]
        return next((row["values"] for row in rows if row["kind"] == "code"), {})

    assert code(one, same) == {}
    found = code(none, one, two)
    assert found[none] == []
    assert {value for name in (one, two) for value in found[name]} == {digest[:12] for digest in digests}


def test_numbers_that_no_float_holds_have_a_range() -> None:
    assert show_values([10**400, math.nan, 1]) == f"1 ... {10**400} (3, 1 nan)"
