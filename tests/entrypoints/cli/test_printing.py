"""How values are shown in tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.execution.report.runs import play
from tests.programs import Program
from torchx_kfp.entrypoints.cli.display.printing import show_value, this_command
from torchx_kfp.entrypoints.cli.display.summary import print_stages
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.entries import add_entry

TEXT = {"text": "\u00fcn\u00ef \u2603", "\u65e5\u672c": [1, 2]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(TEXT, '{"text": "\u00fcn\u00ef \u2603", "\u65e5\u672c": [1, 2]}'), (["\u00e9"], '["\u00e9"]'), (True, "true")],
)
def test_text_is_shown_as_it_is(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_text_of_any_language_is_text_in_json_and_in_lines(call: Program, tmp_path: Path) -> None:
    (tmp_path / "stage.py").write_text(
        "from torchx_kfp.tracking import current_run\ncurrent_run().put(name='\u65e5\u672c \u00e9')\n"
    )
    (tmp_path / "p.py").write_text(
        "from kfp import dsl\n"
        "from torchx.specs import AppDef, Role\n"
        "from torchx_kfp import Stages\n\n"
        "@dsl.pipeline(name='p')\ndef p(tracker_base: str, words: list = ['\u00e9']):\n"
        "    role = Role('r', image='i', entrypoint='python', args=['stage.py', f'{words}'])\n"
        "    Stages(tracker_base=tracker_base).task(AppDef('a', [role]))\n"
    )
    run = ("run", "p.py", "--tracker-base", "b", "--no-cache")
    printed = call(*run, "--json").stdout
    assert "\\u" not in printed
    assert json.loads(printed.splitlines()[-2])["results"] == {"name": "\u65e5\u672c \u00e9"}
    lines = call(*run, "-v").stderr
    assert "\\u" not in lines
    assert "\u65e5\u672c \u00e9" in lines
    # An encoding without these characters has their escapes.
    assert json.loads(call(*run, "--json", PYTHONIOENCODING="ascii").stdout.splitlines()[-2])["results"]


@pytest.mark.parametrize(
    ("folder", "program"),
    [("/", "/bin/torchx-kfp"), ("bin", "torchx-kfp"), ("lib", "/bin/torchx-kfp"), (".", "bin/torchx-kfp")],
)
def test_a_program_that_is_not_on_path_has_its_path(
    folder: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    there = tmp_path / "bin" / "torchx-kfp"
    there.touch()
    monkeypatch.setattr(sys, "argv", [str(there)])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path / folder)
    assert this_command("runs") == f"{tmp_path if program.startswith('/') else ''}{program} runs"


URL = "s3://bucket/results/experiments-of-this-year/" + "a-long-name/" * 12 + "model.bin"


def test_a_run_with_long_urls_fits_a_terminal(call: Program, tmp_path: Path) -> None:
    results = {f"model_{number}": f"{URL}{number}" for number in range(4)}
    play(tmp_path / "local_outputs" / "r", ["train", "judge"], result=lambda _: {"loss": 0.5, **results})
    lines = call.terminal(100, "show", "r", NO_COLOR="1").read().splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("stage ")) :]
    assert len(table) <= 12, "\n".join(table)
    assert table[2].startswith("train")
    assert URL + "3" in call("show", "r").stdout.replace("\n", "").replace(" ", "")


def test_a_comparison_has_a_bounded_width(call: Program, tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path / "b")
    for run in ("one", "two"):
        tracker[f"{run}/train/1"] = {"url": f"{URL}{run}"}
        add_entry(tracker.store, f"{run}/train/1", {"metadata": {"values": list(range(400))}})
    done = call("compare", "--tracker-base", "b", "one", "two")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) < 180
    assert "s3://bucket/results/" in done.stdout
    rows = json.loads(call("compare", "--tracker-base", "b", "one", "two", "--json").stdout)["rows"]
    assert rows[0]["values"]["one"] == [f"{URL}one"]


@pytest.mark.parametrize(
    ("state", "reason", "cell"),
    [
        (State.SKIPPED, "was skipped: its condition is false", "(its condition is false)"),
        (State.NOT_RUN, "was not run: train failed", "(train failed)"),
        (
            State.FAILED,
            "has no value for its input 'b': the loop item {'a': 1} has no field 'b'",
            "(has no value for its input 'b': the loop item {'a': 1} has no field 'b')",
        ),
        (State.QUEUED, "Unschedulable: 0/1 nodes are available", "(Unschedulable: 0/1 nodes are available)"),
    ],
)
def test_the_reason_of_a_stage_that_was_not_started(
    capsys: pytest.CaptureFixture[str], state: State, reason: str, cell: str
) -> None:
    print_stages([StageResult("use", "use", state, reason=reason)])
    assert capsys.readouterr().out.splitlines()[-1].endswith(cell)
