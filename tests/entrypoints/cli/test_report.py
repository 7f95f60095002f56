"""``torchx-kfp report``: which run it shows, where the page is written, and the errors."""

from __future__ import annotations

import html
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.execution.report.runs import play
from tests.facts import says
from torchx_kfp.common.text import is_unsafe


@pytest.fixture
def run(project: Path) -> Path:
    folder = project / "local_outputs" / "digits-1"
    play(folder, ["train"])
    return folder


def test_the_page_is_written_into_the_run_and_its_path_printed(inside: Call, run: Path) -> None:
    done = inside("report", "digits")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{run / 'report.html'}\n"
    page = (run / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl", "report.html", "run.json"]


def test_an_older_page_is_overwritten(inside: Call, run: Path, project: Path) -> None:
    (project / "page.html").write_text("old")
    assert inside("report", str(run), "-o", "page.html").stdout == "page.html\n"
    assert "digits-1" in (project / "page.html").read_text()


def test_a_dash_is_stdout(inside: Call, run: Path, project: Path) -> None:
    done = inside("report", "digits", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.endswith("</html>\n")
    assert not (project / "-").exists()
    assert not (run / "report.html").exists()


def test_runs_elsewhere_are_named(inside: Call, project: Path) -> None:
    play(project / "elsewhere" / "a-1", ["train"])
    assert inside("report", "a-1", "--output-dir", "elsewhere").returncode == 0
    done = inside("report", "b", "--output-dir", "elsewhere")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: There is no run 'b' in 'elsewhere'. Its runs, the newest first: a-1.")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("missing/page.html", "Error: There is no folder '{project}/missing' for the report."),
        (".", "Error: '{project}' is a folder. Give a file for the report: -o {project}/report.html."),
        ("x" * 300, "cannot be written: File name too long."),
    ],
)
def test_a_place_that_cannot_be_is_refused(inside: Call, run: Path, project: Path, output: str, message: str) -> None:
    done = inside("report", str(run), "-o", output)
    assert (done.returncode, done.stdout) == (2, "")
    assert message.format(project=project) in done.stderr


def test_no_other_command_loads_it() -> None:
    names = "'jinja2' in sys.modules, 'torchx_kfp.execution.report' in sys.modules"
    program = f"import sys, torchx_kfp.entrypoints.cli; print({names})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_a_server_that_only_the_run_names_is_not_asked(inside: Call, project: Path, chain: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"{chain}http://127.0.0.1:{server.getsockname()[1]}/x"
        play(project / "local_outputs" / "digits-1", ["train"], tracker_base=base)
        refused = says(base, "only the run names it", "TORCHX_KFP_TRACKER_BASE")
        assert re.search(refused, html.unescape(inside("report", "digits-1", "-o", "-").stdout))
        for words in (["results"], ["show"], ["lineage"], ["compare", "digits-1"]):
            done = inside(*words, "digits-1")
            assert done.returncode == 2, words
            assert re.search(refused, done.stderr), words
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_page_has_no_characters_that_control_a_terminal(inside: Call, project: Path) -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202ered\ud800"
    text = {"result": lambda number: {evil: f"one\r\n{evil}"}, "inputs": lambda number: {evil: evil}}
    play(project / "local_outputs" / "digits-1", [f"train{evil}"], pipeline=evil, **text)
    page = inside("report", "digits-1", "-o", "-").stdout
    assert page.count("]0;title") > 5
    assert not [character for character in page if character != "\n" and is_unsafe(character)]
    assert "one\n\N{REPLACEMENT CHARACTER}]0;title" in page
