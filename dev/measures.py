"""Print the size of the package and of its tests: lines and modules by folder, and the tests that know internals.

    make measures                      # this working tree
    make measures ARGS="REVISION ..."  # and others, in columns

The figures are a compass, not limits. Everything is counted from the source, so that any revision can be measured.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from dev.changed import PACKAGE, REPOSITORY, imports_of, name_of

#: What ``CONTRIBUTING.md`` calls the public API. Everything else of the package is internal.
PUBLIC = {
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ["tracking", "local", "host", "hpo", "hpo.ax", "errors"]),
}

_COUNT = """
import click
from torchx_kfp.entrypoints.cli import cli as main
def parameters(command):
    below = command.commands.values() if type(command) is click.Group else ()
    return len(command.params) + sum(map(parameters, below))
names = main.list_commands(None)
print(len(names), sum(parameters(main.get_command(None, name)) for name in names))
"""


def measures(root: Path) -> dict[str, int | str]:
    """Measure the repository at ``root``."""
    texts = {it.relative_to(root): it.read_text(encoding="utf-8") for it in sorted(root.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in texts.items()}
    modules = {name_of(path) for path in lines if path.parts[0] == PACKAGE}
    tests = [path for path in lines if path.name.startswith("test_")]
    knowing = [path for path in tests if {*imports_of(texts[path])} & modules - PUBLIC]
    folders: Counter[str] = Counter()
    for path, count in lines.items():
        if path.parts[0] == PACKAGE:
            folders["/".join(path.parts[: 2 + (path.parts[1] == "execution")]).removesuffix(".py")] += count
        elif not path.parts[0].startswith("."):
            folders[path.parts[0]] += count
    share = sum(lines[path] for path in knowing) / sum(lines[path] for path in tests)
    return {
        **{f"lines of {name}": count for name, count in sorted(folders.items())},
        f"lines of {PACKAGE}": sum(count for path, count in lines.items() if path.parts[0] == PACKAGE),
        f"modules of {PACKAGE}": sum(path.parts[0] == PACKAGE for path in lines),
        **_commands(root),
        "modules of tests": len(tests),
        "modules of tests that import internals": len(knowing),
        "lines in them, of the lines of such modules": f"{share:.0%}",
    }


def _commands(root: Path) -> dict[str, int | str]:
    """Count the commands, and the arguments and options of all of them: what ``root`` loads says what it has."""
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", _COUNT], cwd=root, env=environ, check=True, capture_output=True)
    commands, parameters = map(int, done.stdout.split())
    return {"commands": commands, "parameters of commands": parameters}


def main(revisions: list[str]) -> None:
    """Print a table with a column for each revision and one for what is committed or about to be."""
    columns = {}
    for name in [*revisions, "now"]:
        with tempfile.TemporaryDirectory() as folder:
            tree = name if name != "now" else _git("stash", "create").decode().strip() or "HEAD"
            with tarfile.open(fileobj=io.BytesIO(_git("archive", tree))) as files:
                files.extractall(folder, filter="data")
            columns[name] = measures(Path(folder))
    print("| measure |", *(f"{name} |" for name in columns))
    print("|---|" + "--:|" * len(columns))
    for measure in dict.fromkeys(key for column in columns.values() for key in column):
        print(f"| {measure} |", *(f"{column.get(measure, 0)} |" for column in columns.values()))


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
