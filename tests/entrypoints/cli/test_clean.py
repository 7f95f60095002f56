"""Text from elsewhere (names, values, logs, errors) is harmless in a terminal, in every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.entrypoints.cli.conftest import Call
from tests.execution.report.runs import play, tracked
from tests.programs import Program, results_in

#: Sequences for the clipboard, a link, a title, the cursor and the screen, other forms of them, writing directions, and
#: line ends.
HOSTILE = (
    "\x1b]52;c;cHduZWQ=\x07\x1b]8;;http:x\x1b\\\x1b]0;t\x07\x1b[5A\x1b[2J\x9b2J\x9d0;t\x9c"
    "\u202egnp\u2066\x85\u2028\x08\x7f\u200b"
)
RUN = f"run-2 {HOSTILE}"
FORBIDDEN = ["\x1b]", "\x1b\\", *"\x07\x9b\x9c\x9d\x85\u202e\u2066\u2028\x08\x7f\u200b"]


def spec(name: str) -> dict[str, Any]:
    """Return a compiled pipeline with this text wherever it may contain text; its stage ``bad`` fails."""
    parameters = {"text": {"parameterType": "STRING"}}

    def container(code: int) -> dict[str, Any]:
        script = f'printf "%s\\n" "$0" "[$0" >&2; printf "%s" "$0"; exit {code}'
        args = ["{{$.inputs.parameters['text']}}"]
        return {"container": {"image": f"image {name}", "command": ["sh", "-c", script], "args": args}}

    def task(component: str, *after: str) -> dict[str, Any]:
        return {
            "componentRef": {"name": component},
            "dependentTasks": list(after),
            "inputs": {"parameters": {"text": {"componentInputParameter": "text"}}},
            "taskInfo": {"name": f"{component} {name}"},
        }

    inputs = {"parameters": {"text": {"parameterType": "STRING", "defaultValue": f"value {name}"}}}
    components = {it: {"executorLabel": it, "inputDefinitions": {"parameters": parameters}} for it in ("good", "bad")}
    return {
        "components": components,
        "deploymentSpec": {"executors": {"good": container(0), "bad": container(3)}},
        "pipelineInfo": {"name": f"pipeline {name}"},
        "root": {
            "dag": {"tasks": {f"good {name}": task("good"), f"bad {name}": task("bad", f"good {name}")}},
            "inputDefinitions": inputs,
        },
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.16.1",
    }


def assert_clean(text: str, *, screen: bool = False) -> None:
    """Assert that the text is harmless; ``screen`` is true for the live view, which moves the cursor itself."""
    moves = [] if screen else ["\x1b[5A", "\x1b[2J"]
    assert [each for each in [*FORBIDDEN, *moves] if each in text] == []


@pytest.fixture
def hostile(project: Path) -> Path:
    """A folder with the pipeline's file, and with results that have such names and values."""
    (project / "hostile.yaml").write_text(yaml.safe_dump(spec(HOSTILE)))
    base = project / "results"
    for run_id, parents in (("run-1/train/1", {}), ("run-1/next/1", {"x": "run-1/train/1"}), ("run-3/train/1", {})):
        run = tracked(base, run_id, **parents)
        run.add_metadata(note=HOSTILE, **{f"key {HOSTILE}": 1})
        run.put(**{f"name {HOSTILE}": f"value {HOSTILE}{run_id}", "loss": 0.5})
        run.add_artifact("model", f"s3://b/{HOSTILE}", k=HOSTILE)
    # Anyone who can write to the storage can make such a run.
    (base / RUN / "train").mkdir(parents=True)
    (base / RUN / "train" / "1").write_text(json.dumps({f"name {HOSTILE}": HOSTILE}))
    return project


@pytest.mark.parametrize("words", [(), ("--verbose", "--no-cache")], ids=" ".join)
def test_a_run_in_a_terminal(words: tuple[str, ...], hostile: Path, call: Program) -> None:
    shown = call.terminal(100, "run", "hostile.yaml", *words).read()
    assert_clean(shown, screen=not words)
    assert ("failed" in shown, "Traceback" in shown) == (True, False)
    for command in (("logs", "latest"), ("runs",)):
        assert_clean(call.terminal(100, *command).read())


def test_a_run_for_a_pipe_whose_files_keep_the_very_bytes(hostile: Path, call: Call) -> None:
    done = call("run", "hostile.yaml")
    assert_clean(done.stdout + done.stderr)
    assert done.returncode == 1
    (folder,) = (hostile / "local_outputs").iterdir()
    assert any(HOSTILE.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "words",
    [
        *(("results", "--tracker-base", "results", *form) for form in ((), ("--csv",), ("--json",))),
        *(("show", "--tracker-base", "results", "run-1/train/1", *form) for form in ((), ("--json",))),
        ("show", "--lineage", "--tracker-base", "results"),
        ("show", "--lineage", "--tracker-base", "results", "run-1/next/1", "--json"),
        ("compare", "--tracker-base", "results", "run-1", RUN),
        *(
            (*words, f"no {HOSTILE}")
            for words in (
                ("results", "--tracker-base", "results"),
                ("show", "--tracker-base", "results"),
                ("results",),
                ("logs",),
            )
        ),
        ("run", f"no {HOSTILE}.yaml"),
        ("--traceback", "run", f"no {HOSTILE}.yaml"),
        ("compile", "wrong.py"),
    ],
    ids=lambda words: " ".join(words).replace(HOSTILE, "").replace(RUN, "run-2"),
)
def test_commands(words: tuple[str, ...], hostile: Path, call: Program) -> None:
    (hostile / "wrong.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    shown = call.terminal(100, *words).read()
    assert_clean(shown)
    assert words[0] != "compile" or "ValueError" in shown
    if words[0] in ("results", "compare"):
        done = call(*words)
        assert_clean(done.stdout + done.stderr)


def test_json_and_csv_have_escapes(hostile: Path, call: Call) -> None:
    found = json.loads(call("show", "--tracker-base", "results", "run-1/train/1", "--json").stdout)
    assert found["results"][f"name {HOSTILE}"].startswith(f"value {HOSTILE}")
    csv = call("results", "--tracker-base", "results", "--csv").stdout
    for escape in ("\\x1b]52;c;cHduZWQ=\\x07", "\\x9b2J", "\\u202e"):
        assert escape in csv


POINTS = [*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x2028, 0x2029, 0x202A, 0x202E, 0x2066, 0xFEFF, 0xE0001]
UNSAFE = [chr(point) for point in POINTS if chr(point) not in "\n\t\r\x1b"]
FINE = "é漢字🙂 👩\u200d💻 می\u200cشود a\u00a0b\u3000c\t"


def test_each_unsafe_character_of_logs_and_results(project: Path, call: Program) -> None:
    play(project / "local_outputs/p-1", ["a"])
    log = project / "local_outputs/p-1/a_1/log.txt"
    log.parent.mkdir()
    log.write_bytes("".join(f"<{it}>\n" for it in [*UNSAFE, FINE]).encode())
    assert call("logs", "p").stdout == "a | <\ufffd>\n" * len(UNSAFE) + f"a | <{FINE}>\n"
    assert call.terminal(80, "logs", "p/a").read() == "<\ufffd>\n" * len(UNSAFE) + f"<{FINE}>\n"
    results = {f"r{number}": character for number, character in enumerate([*UNSAFE, "\x1b"])}
    tracked(project / "base", "run/train/1").put(**results)
    shown = call("results", "--tracker-base", "base", "run/", "--json").stdout
    assert results_in(shown) == {"run/train/1": results}
    assert shown.isascii()


def test_colours_stay_where_they_may(project: Path, call: Program) -> None:
    play(project / "local_outputs/p-1", ["a"])
    log = project / "local_outputs/p-1/a_1/log.txt"
    log.parent.mkdir()
    plain = "\x1b[1;31mred\x1b[0m \x1b[38;5;200mpink\x1b[m"
    log.write_text(f"{plain}\n\x1b[8mhidden\x1b[1;8m\n\x1b[2K\x1b[31;\x1b[?25l\n")
    shown = call.terminal(80, "logs", "p/a").read()
    assert shown.splitlines() == [plain, "hidden", "\ufffd[2K\ufffd[31;\ufffd[?25l"]
    assert call("logs", "p").stdout.splitlines()[0] == "a | red pink"
