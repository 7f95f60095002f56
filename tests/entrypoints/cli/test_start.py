"""What the command line loads before it has anything to do: help texts wait for no large libraries."""

import json
import subprocess
import sys
from pathlib import Path

from tests.entrypoints.cli.conftest import Call
from tests.programs import PROGRAM

#: Runs the program for each command line, in a fork, and prints the names of all modules that it has loaded.
PROGRAMS = """
import json, os, runpy, sys
before = {*sys.modules}
for words in json.loads(sys.argv[1]):
    if not os.fork():
        sys.argv[1:] = words
        sys.stdout = open(os.devnull, "w")
        try:
            runpy.run_module("torchx_kfp", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            print(json.dumps([words, end.code, sorted(sys.modules.keys() - before)]), file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""


def test_help_loads_click_and_no_large_library(call: Call) -> None:
    """Import what draws, what asks a host, and what runs stages or imports kfp inside of functions."""
    listed = call("--help").stdout.partition("Write:")[2].partition("RUN is")[0].splitlines()
    commands = [line.split()[0] for line in listed if line.startswith("  ") and line[2:3].strip()]
    assert {"run", "results"} < {*commands}
    lines = [["--help"], *([command, "--help"] for command in commands)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [words for words, *_ in found] == lines
    large = {"fsspec", "google", "jinja2", "kfp", "rich", "torchx", "urllib3"}
    slow = {"asyncio", "email", "http.client", "multiprocessing", "ssl", "unittest"}
    for words, code, modules in found:
        libraries = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
        if words == ["--help"]:
            assert (libraries, "concurrent.futures" in modules) == ({"click", "torchx_kfp"}, False)
        assert (code, libraries & large) == (0, set()), words
        assert not slow & {*modules}, words


def test_files_beside_a_pipeline_do_not_hide_libraries(project: Path) -> None:
    """A file may have the name of a library that only the command line imports."""
    for library in ("rich", "kfp_server_api", "jinja2"):
        (project / f"{library}.py").write_text("raise RuntimeError('not the library')")
    words = [PROGRAM, "run", "pipelines.py:two", "--tracker-base", "base"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "not the library" in done.stderr) == (0, False), done.stderr
