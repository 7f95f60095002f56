"""The command line as a user calls it: processes, exact texts, exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import torchx_kfp
from tests.entrypoints.cli.conftest import Call
from tests.programs import PROGRAM, Program, results_in
from torchx_kfp.tracking import FsspecResultTracker

CLI = "torchx_kfp.entrypoints.cli"


@pytest.mark.versions
def test_help_has_whole_summaries_and_the_version(call: Call) -> None:
    assert "..." not in call("--help").stdout.partition("Write:")[2], "every summary fits"
    assert call("--version").stdout == f"torchx-kfp, version {torchx_kfp.__version__}\n"


def test_compile_says_how_near_a_pipeline_comes_to_argos_limit(call: Call, project: Path) -> None:
    source = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import task_from_app

@dsl.pipeline(name="many")
def many(tracker_base: str = "s3://bucket/results") -> None:
    with dsl.ParallelFor(list(range({}))) as item:
        app = AppDef("train", roles=[Role("train", image="i", entrypoint="python", args=["-m", "train", f"{{item}}"])])
        task_from_app(app, tracker_base=tracker_base)
"""
    for count, said in ((10, ""), (400, "400 stages, about 0."), (700, "Warning: may fail on KFP: the pipeline needs")):
        (project / "many.py").write_text(source.format(count))
        done = call("compile", "many.py")
        assert done.returncode == 0
        assert done.stdout.startswith("# PIPELINE DEFINITION")
        assert done.stderr.startswith(said)
        assert bool(done.stderr) == bool(said)
    done = call("check", "many.py")
    assert (done.returncode, done.stdout.startswith("may fail on KFP: the pipeline needs about")) == (0, True)


#: What is proposed for the words of a command.
COMPLETED = {
    "sho": ["show"],
    "show l": ["latest"],
    "results two-": ["two-"],
    "show latest/s": ["latest/second[0]", "latest/second[1]"],
    "compare latest latest/f": ["latest/first"],
    "show nothing/": [],
    "show --tr": ["--tracker-base"],
    "run pip": ["pip"],
    "rbac --engine jobs": ["jobset"],
    "show --output-dir other la": ["latest"],
}


@pytest.mark.versions
def test_a_shell_completes(call: Call, project: Path) -> None:
    assert call("run", "pipelines.py:two", "-p", 'names=["a", "b"]', "--tracker-base", "b", "-q").returncode == 0
    for words, expected in COMPLETED.items():
        asked = {"COMP_WORDS": f"torchx-kfp {words}", "COMP_CWORD": str(len(words.split()))}
        done = call(**asked, _TORCHX_KFP_COMPLETE="bash_complete")
        found = [line.partition(",")[2] for line in done.stdout.splitlines() if line]
        assert [it[: len(word)] for it, word in zip(found, expected, strict=True)] == expected, words


def test_the_type_of_a_parameter_that_torchx_cannot_read_is_named(call: Call, project: Path) -> None:
    (project / "comps.py").write_text(
        "from torchx.specs import AppDef, Role\n\n"
        "def new(a: str = '', env: dict[str, str] | None = None) -> AppDef:\n"
        '    """Do it."""\n'
        "    return AppDef('new', [Role('new', image='i', entrypoint='true', env=env or {})])\n"
    )
    assert call("run", "comps.py:new").returncode == 0
    done = call("run", "comps.py:new", "--", "--env", "A=B")
    assert done.returncode == 2
    assert "has parameters that TorchX cannot read, 'env': write Optional[X]" in done.stderr


#: A pipeline with a tracker base of its own, which no setting replaces here.
WITH_DEFAULT = """
from kfp import dsl
from torchx.components import utils
from torchx_kfp import Stages

@dsl.pipeline(name="default")
def default(tracker_base: str = "own"):
    Stages(tracker_base=tracker_base).task(utils.echo("hello"))
"""


def test_the_tracker_base_of_the_settings_and_that_of_the_newest_run(call: Call, project: Path) -> None:
    needed = call("run", "pipelines.py:two", "--quiet")
    assert (needed.returncode, "needs a tracker base" in needed.stderr) == (2, True), needed.stderr
    done = call("run", "pipelines.py:two", "--quiet", TORCHX_KFP_TRACKER_BASE="set")
    assert done.returncode == 0, done.stderr
    assert "The tracker base is set (TORCHX_KFP_TRACKER_BASE)." in done.stderr
    listed = call("results")
    [run] = json.loads(call("runs", "--json").stdout)
    assert f"The tracker base is {project / 'set'} ({run['run']})." in listed.stderr
    assert run["run"] in listed.stdout
    (project / "default.py").write_text(WITH_DEFAULT)
    planned = call("run", "default.py", "--dry-run", TORCHX_KFP_TRACKER_BASE="set")
    assert (planned.returncode, "The tracker base is" in planned.stderr) == (0, False), planned.stderr
    guarded = call("results", TORCHX_KFP_TRACKER_BASE="http://user:word@localhost:1/b")
    assert "The tracker base is http://...@localhost:1/b (TORCHX_KFP_TRACKER_BASE)." in guarded.stderr
    assert "word" not in guarded.stderr


def test_an_empty_tracker_base_that_no_stage_uses(call: Call, project: Path) -> None:
    text = WITH_DEFAULT.replace('"own"', '""')
    (project / "used.py").write_text(text)
    done = call("run", "used.py")
    assert (done.returncode, "The tracker base '' is not" in done.stderr) == (2, True), done.stderr
    (project / "unused.py").write_text(text.replace("tracker_base=tracker_base", ""))
    done = call("run", "unused.py", "--quiet")
    assert done.returncode == 0, done.stderr


def test_where_a_relative_tracker_base_is(call: Call, project: Path) -> None:
    """It is relative to the current directory, however it is given: stages may change theirs."""
    with (project / "pipelines.py").open("a") as file:
        file.write(
            "\n\n@dsl.pipeline(name='elsewhere')\ndef elsewhere(tracker_base: str = 'default'):\n"
            "    program = \"import os; os.chdir('/')\" + RECORD\n"
            "    task_from_app(app('first', '1', program=program), tracker_base=tracker_base)\n"
        )
    home = {"HOME": str(project / "home")}
    for words, folder in {
        (): "default",
        ("-p", "tracker_base=given"): "given",
        ("--tracker-base", "option"): "option",
        ("--tracker-base=~/tilde",): "home/tilde",
    }.items():
        done = call("run", "pipelines.py:elsewhere", *words, **home)
        assert "value=1.0" in done.stdout, done.stderr
        assert len(FsspecResultTracker(project / folder).keys()) == 1


def test_pipelines_are_found_by_both_of_their_names(call: Call, project: Path) -> None:
    (project / "named.py").write_text(
        "from kfp import dsl\nimport pipelines\nother = pipelines.sleeps\ntwo = pipelines.two\n"
    )
    assert call("compile", "named.py:other").stdout == call("compile", "named.py:sleeps", "-o", "-").stdout != ""


@pytest.mark.parametrize("folder", [(), ("--output-dir", "runs")])
def test_results_of_cached_stages_are_shown_again_as_those_of_the_run(
    folder: tuple[str, ...], call: Call, project: Path
) -> None:
    words = ("run", "pipelines.py:two", "--tracker-base", "two words", *folder)
    first = call(*words)
    assert re.search(r"^first +succeeded .* value=1.5  parents=0$", first.stdout, re.MULTILINE), first
    assert "first | arguments ['1.5']\n" in first.stderr
    for values, count in {(): 2, ("-p", 'names=["b"]'): 1}.items():
        done = call(*words, *values)
        (again,) = [line for line in done.stderr.splitlines() if line.startswith("See the results again: ")]
        run_id = done.stderr.split()[1].rstrip(":")
        shown = call(*shlex.split(again.removeprefix("See the results again: "))[1:])
        assert shown.stdout.startswith(f"Run {run_id}\n"), shown.stderr
        assert shown.stdout.count("(cached)") == count


def test_a_project_of_packages_from_another_folder(
    call: Call, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """pipelines/ finds components/, and stages find the applications in it."""
    root = tmp_path / "project"
    for package in ("pipes", "parts"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text("")
    (root / "parts" / "program.py").write_text("print('from parts')")
    (root / "parts" / "apps.py").write_text(
        "from torchx.specs import AppDef, Role\n"
        "def app(): return AppDef('a', [Role('r', image='i', entrypoint='python', args=['-m', 'parts.program'])])\n"
    )
    (root / "pipes" / "one.py").write_text(
        "from kfp import dsl\nfrom parts.apps import app\nfrom torchx_kfp import task_from_app\n"
        "@dsl.pipeline(name='one')\ndef one():\n    task_from_app(app())\n"
    )
    done = call("run", str(root / "pipes" / "one.py"), folder=tmp_path_factory.mktemp("elsewhere"))
    assert done.returncode == 0, done.stderr
    assert "from parts" in done.stderr


def test_a_traceback_when_it_is_asked_for(call: Call, project: Path) -> None:
    (project / "broken.py").write_text("x = 1\nundefined\n")
    assert "NameError: name 'undefined' is not defined" in call("run", "broken.py").stderr
    done = call("--traceback", "compile", "broken.py")
    assert done.returncode == 2
    assert f'File "{project / "broken.py"}", line 2' in done.stderr
    assert f"Error: {project / 'broken.py'}, line 2, in <module>:\n    undefined\nNameError" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_results_that_stdout_cannot_have_as_they_are(encoding: str, call: Call, project: Path) -> None:
    (project / "base/run/train").mkdir(parents=True)
    (project / "base/run/train/1").write_text('{"half": "\\ud800", "note": "\u00e9\\n\\u001b[31m"}', encoding="utf-8")
    done = call("results", "--tracker-base", "base", "run", "--json", PYTHONIOENCODING=encoding)
    assert results_in(done.stdout) == {"run/train/1": {"half": "\ud800", "note": "é\n\x1b[31m"}}, done.stderr
    shown = call("results", "--tracker-base", "base", "run/", PYTHONIOENCODING=encoding)
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert r"\ud800" in shown.stdout


def test_a_table_in_a_terminal_that_is_narrower_than_a_character(call: Program, project: Path) -> None:
    """The command did not end, and took more and more memory."""
    (project / "base/\u65e5\u672c/train").mkdir(parents=True)
    (project / "base/\u65e5\u672c/train/1").write_text('{"size": 3}')
    assert call.terminal(1, "results", "--tracker-base", "base").read().split()[-1] == "train"


@pytest.mark.parametrize("words", ["results --tracker-base some", "--help", "runs --help", "--version"])
def test_output_that_cannot_be_written(words: str, call: Call, project: Path) -> None:
    FsspecResultTracker(project / "some")["run/train/1"] = {"loss": 0.1}
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *words.split()], cwd=project, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "Error: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


@pytest.mark.parametrize("module", ["click", f"{CLI}.display.printing", f"{CLI}.commands.runs"])
def test_an_interrupt_while_the_program_is_imported_is_one_line(tmp_path, module):
    """It used to be a traceback of forty lines, or click's own word."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            time.sleep(5)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torchx_kfp", "runs"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")
