"""An execution id that is known only at run time cannot add a stage that the pipeline does not declare."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.authoring.apps import compile_pipeline, make_app
from tests.authoring.kfp_engines import tracked_container
from torchx_kfp import task_from_app

APP = make_app(entrypoint="sh", args=["-c", 'printf %s\\\\n "$TORCHX_PARENT_RUN_IDS" "$TORCHX_PARENT_RUN_ID"'])


def reader(one: str, two: str, many: list) -> None:
    """A stage that reads two execution ids and a fan-in, all of which are parameters."""
    reads = {"one": one, "two": two, "many": many, "old": ["old/a/1", one]}
    task_from_app(APP, tracker_base="/tmp/results", reads=reads)


COMPILED = compile_pipeline(reader)


def start(shells: Path, tmp: Path, inputs: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return tracked_container(COMPILED, "train", tmp, **inputs).run(shells)


@pytest.mark.parametrize(
    ("one", "two", "many"), [("local_cwd://session/app", "r/b/1", ["r/c/1", "r/c/2"]), ("", "", [])]
)
def test_run_ids_that_are_parameters(shells: Path, tmp_path: Path, one: str, two: str, many: list[str]) -> None:
    done = start(shells, tmp_path, {"one": one, "two": two, "many": json.dumps(many, separators=(",", ":"))})
    assert (done.returncode, done.stderr) == (0, b"")
    text, first = done.stdout.decode().splitlines()
    assert json.loads(text) == {"one": one, "two": two, "many": many, "old": ["old/a/1", one]}
    assert first == one


@pytest.mark.parametrize(
    "inputs",
    [
        {"one": 'x", "other": "y'},
        {"one": 'x", "two": "evil'},
        {"two": 'x", "one": "evil'},
        {"one": 'x\\", "z": "', "two": ', "other": "y'},
        {"one": "x\\", "two": ', "other": "y'},
        {"one": 'x"], "other": ["y'},
        {"one": "x\\u0022, \\u0022other\\u0022: \\u0022y"},
        {"many": '["r/c/1"], "other": ["y"]'},
        {"many": '["r/c/1"], "two": ["evil"]'},
        {"many": '"r/c/1", "other": "y"'},
        {"many": '["r/c/1\\"]'},
        {"many": "r/c/1"},
        {"many": "["},
        {"many": "]"},
        {"many": ""},
    ],
    ids=json.dumps,
)
def test_a_run_id_that_would_be_another_alias_is_refused(shells: Path, tmp_path: Path, inputs: dict[str, str]) -> None:
    done = start(shells, tmp_path, {"one": "r/a/1", "two": "r/b/1", "many": '["r/c/1"]', **inputs})
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"torchx-kfp: not an execution id: ")
    if not any("\\" in value for value in inputs.values()):  # dash interprets them in what it prints
        assert any(value.encode() in done.stderr for value in inputs.values())


PIECES = st.lists(st.sampled_from(['"', "\\", "[", "]", "{", "}", ",", ": ", "a", "r/b/1", "two", '", "', "\n"])).map(
    "".join
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=PIECES, two=PIECES, many=st.one_of(PIECES, PIECES.map("[{}]".format), PIECES.map('["{}"]'.format)))
@example(one="", two=", 1], ", many='["a]')
def test_whatever_the_values_are(shells: Path, tmp_path: Path, one: str, two: str, many: str) -> None:
    """The stage fails, or its parents are not JSON, or they are those that it declares."""
    done = start(shells, tmp_path, {"one": one, "two": two, "many": many})
    if done.returncode == 2:
        return
    assert done.returncode == 0
    try:
        pairs = json.loads(done.stdout.decode().rpartition("\n")[0].rpartition("\n")[0], object_pairs_hook=list)
    except json.JSONDecodeError:
        return
    assert [alias for alias, _ in pairs] == ["one", "two", "many", "old"]
    parents = dict(pairs)
    assert (parents["one"], parents["two"], parents["old"]) == (one, two, ["old/a/1", one])


def test_an_alias_named_like_a_placeholder_of_kfp(shells: Path, tmp_path: Path) -> None:
    def pipeline(one: str) -> None:
        task_from_app(APP, tracker_base="/tmp/results", reads={"Concat": one, "IfPresent": one})

    done = tracked_container(compile_pipeline(pipeline), "train", tmp_path, Concat="r/a/1").run(shells)
    assert done.stdout == b'{"Concat": "r/a/1", "IfPresent": "r/a/1"}\nr/a/1\n', done.stderr
