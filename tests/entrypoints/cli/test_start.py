"""The modules that the command line loads before it has anything to do: help texts must not wait for libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.entrypoints.cli import ready
from torchx_kfp.entrypoints.cli import cli

#: Runs the program, and at the end prints the names of all modules that it has loaded.
PROGRAM = """
import atexit, sys
before = {*sys.modules, "sys", "atexit"}
atexit.register(lambda: print(*sorted(sys.modules.keys() - before), file=sys.stderr))
from torchx_kfp.entrypoints.cli import main
main()
"""
COMMANDS = cli.list_commands(None)  # it does not use the context


def loaded(*words: str) -> set[str]:
    """Return the modules that the program loads for this command line."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: ")
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)], ids=" ".join)
def test_help_loads_click_and_no_other_library(words: list[str]) -> None:
    modules = loaded(*words, "--help")
    libraries = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert libraries == {"click", "torchx_kfp"}, "import the modules that a command works with inside its functions"
    own = {name for name in modules if name.startswith("torchx_kfp.") and name.count(".") > 1}
    # These have names and settings, and import nothing else.
    light = {
        *{"execution.runs", "execution.runs.vocabulary", "contract.protocol", "common.text", "common.extras"},
        *{"common.files", "common.safe_files", "execution.host", "execution.host.settings"},
    }
    others = {name for name in own if not name.startswith("torchx_kfp.entrypoints.")}
    assert others <= {f"torchx_kfp.{name}" for name in light}
    slow = {"asyncio", "concurrent.futures", "email", "http.client", "multiprocessing", "ssl", "unittest"}
    assert not modules & slow


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_none_of_the_others(command: str) -> None:
    commands = [name for name in loaded(command, "--help") if name.startswith("torchx_kfp.entrypoints.cli.commands.")]
    assert [name.rpartition(".")[2].partition("_")[0] for name in commands] == [command]


def test_files_beside_a_pipeline_do_not_hide_libraries(project: Path) -> None:
    """A file may have the name of a library that only the command line imports."""
    for library in ("rich", "celpy", "kfp_server_api", "jinja2"):
        (project / f"{library}.py").write_text("raise RuntimeError('not the library')")
    words = [ready.PROGRAM, "run", "pipelines.py:two", "--tracker-base", "base"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "not the library" in done.stderr) == (0, False), done.stderr
