"""The echo script, in shells that images may have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from components.echo.component import echo
from tests.components.stages import run_app

SHELLS = [("sh",), ("dash",), ("bash", "--posix"), ("bash",), ("busybox", "sh")]
MESSAGES = [
    "Hello, pipelines!",
    "",
    "-n",
    "--help",
    "%s %d\\n\\c",
    'it\'s "quoted" `id` $(id) $HOME ${x}',
    "two\nlines\n",
    "Grüße ☃ \U0001f600",
    "{{workflow.name}} $$",
]


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return request.param


def test_says_and_records_any_message(shell: tuple[str, ...], tmp_path: Path) -> None:
    for message in MESSAGES:
        done = run_app(echo(message), tracker_base=tmp_path, run_id="run/a/1", shell=shell)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{message}\n")
        assert json.loads((tmp_path / "run/a/1").read_text()) == {"bytes": len(message.encode()) + 1}


def test_shows_what_the_stage_before_recorded(shell: tuple[str, ...], tmp_path: Path) -> None:
    base = tmp_path / "a folder's $name"
    run_app(echo("one"), tracker_base=base, run_id="run/a/1", shell=shell)
    done = run_app(echo("two"), tracker_base=base, run_id="run/b/1", parents={"a": "run/a/1"}, shell=shell)
    assert (done.returncode, done.stdout) == (0, '{"bytes": 4}\ntwo\n')
    assert json.loads((base / "run/b/1").read_text()) == {"bytes": len(done.stdout)}


def test_fails_where_the_stage_before_has_recorded_nothing(shell: tuple[str, ...], tmp_path: Path) -> None:
    done = run_app(echo("two"), tracker_base=tmp_path, run_id="run/b/1", parents={"a": "run/a/1"}, shell=shell)
    assert done.returncode == 1
    assert f"{tmp_path}/run/a/1" in done.stderr
    assert not (tmp_path / "run/b/1").exists()


def test_refuses_a_tracker_base_that_is_a_url(shell: tuple[str, ...]) -> None:
    done = run_app(echo("hello"), tracker_base="s3://bucket/results", shell=shell)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "echo needs a local directory as tracker base, not s3://bucket/results\n"


def test_untracked_it_only_says(shell: tuple[str, ...]) -> None:
    done = run_app(echo("hello"), shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
