"""Text from elsewhere (names, values, logs, errors) is harmless in a terminal, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.entrypoints.cli.conftest import Call
from torchx_kfp.common.text import clean, escape_json, is_unsafe
from torchx_kfp.contract.protocol import StageContext, encode
from torchx_kfp.entrypoints import cli
from torchx_kfp.tracking import current_run

#: Sequences for the clipboard, a link, a title, the cursor and the screen, other forms of them, writing directions, and
#: line ends.
HOSTILE = (
    "\x1b]52;c;cHduZWQ=\x07\x1b]8;;http:x\x1b\\\x1b]0;t\x07\x1b[5A\x1b[2J\x9b2J\x9d0;t\x9c"
    "\u202egnp\u2066\x85\u2028\x08\x7f\u200b"
)
RUN = f"run-2 {HOSTILE}"
FORBIDDEN = [
    "\x1b]",
    "\x1b\\",
    "\x07",
    "\x9b",
    "\x9c",
    "\x9d",
    "\x85",
    "\u202e",
    "\u2066",
    "\u2028",
    "\x08",
    "\x7f",
    "\u200b",
]


def spec(name: str) -> dict[str, Any]:
    """Return a compiled pipeline with this text wherever it may contain text; its stage ``bad`` fails."""

    def component(executor: str) -> dict[str, Any]:
        parameters = {"text": {"parameterType": "STRING"}}
        return {"executorLabel": executor, "inputDefinitions": {"parameters": parameters}}

    def container(code: int) -> dict[str, Any]:
        return {
            "container": {
                "image": f"image {name}",
                "command": ["sh", "-c", f'printf "%s\\n" "$0" "[$0" >&2; printf "%s" "$0"; exit {code}'],
                "args": ["{{$.inputs.parameters['text']}}"],
            }
        }

    def task(component: str, *after: str) -> dict[str, Any]:
        return {
            "componentRef": {"name": component},
            "dependentTasks": list(after),
            "inputs": {"parameters": {"text": {"componentInputParameter": "text"}}},
            "taskInfo": {"name": f"{component} {name}"},
        }

    return {
        "components": {"good": component("good"), "bad": component("bad")},
        "deploymentSpec": {"executors": {"good": container(0), "bad": container(3)}},
        "pipelineInfo": {"name": f"pipeline {name}"},
        "root": {
            "dag": {"tasks": {f"good {name}": task("good"), f"bad {name}": task("bad", f"good {name}")}},
            "inputDefinitions": {"parameters": {"text": {"parameterType": "STRING", "defaultValue": f"value {name}"}}},
        },
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.16.1",
    }


def assert_clean(text: str, *, screen: bool = False) -> None:
    """Assert that the text is harmless; ``screen`` is true for the live view, which moves the cursor itself."""
    assert [each for each in FORBIDDEN if each in text] == []
    if not screen:
        assert "\x1b[5A" not in text
        assert "\x1b[2J" not in text


@pytest.fixture
def hostile(project: Path) -> Path:
    """A folder with the pipeline's file, and with results that have such names and values."""
    (project / "hostile.yaml").write_text(yaml.safe_dump(spec(HOSTILE)))
    base = project / "results"
    for run_id, parents in (("run-1/train/1", {}), ("run-1/next/1", {"x": "run-1/train/1"}), ("run-3/train/1", {})):
        run = current_run(encode(StageContext(str(base), run_id, parents)))
        run.add_metadata(note=HOSTILE, **{f"key {HOSTILE}": 1})
        run.put(**{f"name {HOSTILE}": f"value {HOSTILE}{run_id}", "loss": 0.5})
        run.add_artifact("model", f"s3://b/{HOSTILE}", k=HOSTILE)
    # Anyone who can write to the storage can make such a run.
    (base / RUN / "train").mkdir(parents=True)
    (base / RUN / "train" / "1").write_text(json.dumps({f"name {HOSTILE}": HOSTILE}))
    return project


@pytest.mark.parametrize("words", [(), ("--verbose", "--no-cache")], ids=" ".join)
def test_a_run_in_a_terminal(words: tuple[str, ...], hostile: Path, terminal: Callable[..., str]) -> None:
    shown = terminal(100, "run", "hostile.yaml", *words)
    assert_clean(shown, screen=not words)
    assert "failed" in shown
    assert "Traceback" not in shown
    for command in (("logs", "latest"), ("runs",)):
        assert_clean(terminal(100, *command))


def test_a_run_for_a_pipe(hostile: Path, call: Call) -> None:
    done = call("run", "hostile.yaml")
    assert_clean(done.stdout)
    assert_clean(done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ("results", "results"),
        ("results", "results", "--format", "csv"),
        ("results", "results", "--format", "json"),
        ("show", "results", "run-1/train/1"),
        ("show", "results", "run-1/train/1", "--format", "json"),
        ("lineage", "results"),
        ("lineage", "results", "run-1/next/1", "--format", "json"),
        ("lineage", "results", "run-1/next/1", "--format", "mermaid"),
        ("lineage", "results", "run-1/next/1", "--format", "dot"),
        ("compare", "results", "run-1", RUN),
        ("gc", "results", "--older-than", "1s", "--dry-run"),
        ("results", "results", f"no {HOSTILE}"),
        ("show", "results", f"no {HOSTILE}"),
        ("results", f"no {HOSTILE}"),
        ("run", f"no {HOSTILE}.yaml"),
        ("--traceback", "run", f"no {HOSTILE}.yaml"),
        ("logs", f"no {HOSTILE}"),
    ],
    ids=lambda words: " ".join(words).replace(HOSTILE, "").replace(RUN, "run-2"),
)
def test_commands(words: tuple[str, ...], hostile: Path, terminal: Callable[..., str], call: Call) -> None:
    assert_clean(terminal(100, *words))
    if words[0] in ("results", "compare"):
        done = call(*words)
        assert_clean(done.stdout + done.stderr)


def test_json_and_csv_have_escapes(hostile: Path, call: Call) -> None:
    found = json.loads(call("show", "results", "run-1/train/1", "--format", "json").stdout)
    assert found["results"][f"name {HOSTILE}"].startswith(f"value {HOSTILE}")
    csv = call("results", "results", "--format", "csv").stdout
    assert "\\x1b]52;c;cHduZWQ=\\x07" in csv
    assert "\\x9b2J" in csv
    assert "\\u202e" in csv


def test_an_error_of_the_users_file(project: Path, terminal: Callable[..., str]) -> None:
    (project / "wrong.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    shown = terminal(100, "compile", "wrong.py")
    assert_clean(shown)
    assert "ValueError" in shown


def test_files_keep_the_very_bytes(hostile: Path, call: Call) -> None:
    call("run", "hostile.yaml")
    (folder,) = (hostile / "local_outputs").iterdir()
    assert any(HOSTILE.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "point", [*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x202A, 0x202E, 0x2066, 0xFEFF, 0xE0001]
)
def test_unsafe_characters(point: int) -> None:
    character = chr(point)
    if character in "\n\t":
        assert clean(f"a{character}b") == f"a{character}b"
        return
    assert is_unsafe(character)
    assert clean(f"a{character}b") == clean(f"a{character}b", colours=True) == "a\ufffdb"
    assert json.loads(escape_json(json.dumps(character, ensure_ascii=False))) == character
    assert escape_json(json.dumps(character, ensure_ascii=False)).isascii()


def test_commands_write_through_one_module() -> None:
    modules = [path for path in Path(cli.__file__).parent.rglob("*.py") if "click.echo" in path.read_text()]
    assert [path.name for path in modules] == ["printing.py"]


def test_colours_stay_where_they_may() -> None:
    line = "\x1b[1;31mred\x1b[0m \x1b[38;5;200mpink\x1b[m"
    assert clean(line, colours=True) == line
    assert clean(line) == line.replace("\x1b", "\ufffd")
    assert clean("\x1b[8mhidden\x1b[1;8m", colours=True) == "hidden"
    assert clean("\x1b[2K\x1b[31;\x1b[?25l", colours=True) == "\ufffd[2K\ufffd[31;\ufffd[?25l"
    assert clean("é漢字🙂 👩\u200d💻 می\u200cشود a\u00a0b\u3000c") == "é漢字🙂 👩\u200d💻 می\u200cشود a\u00a0b\u3000c"
