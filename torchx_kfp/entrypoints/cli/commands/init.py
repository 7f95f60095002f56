"""``torchx-kfp init``: create a small project that runs out of the box."""

from __future__ import annotations

import os
from importlib import resources

import click

from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, this_command
from torchx_kfp.errors import ArgumentError, explain

#: The programs of each kind of project, and the files that all projects have. The package has templates for them: in a
#: folder for each kind, and without the dot of hidden files.
_PROGRAMS = {
    "functions": ("pipeline.py", "data.py", "prepare.py", "train.py"),
    "appdef": ("pipeline.py", "prepare.py", "train.py", "judge.py"),
}
_FILES = ("README.md", "Dockerfile", ".torchxignore")


@click.command("init")
@click.argument("folder", metavar="[DIR]", default=".")
@click.option("--appdef", "kind", flag_value="appdef", default="functions", help="Stages are AppDefs that run scripts.")
def init_command(folder: str, kind: str) -> None:
    """Write a small project into DIR, the current directory by default, and print the names of its files.

    It is a pipeline of Python functions, or of scripts (--appdef), with results between them, and a Dockerfile whose
    image needs no rebuild while the code changes. Its README.md has the commands. Nothing is overwritten.

    \b
    torchx-kfp init training
    """
    files = {name: f"{kind}/{name}.template" for name in _PROGRAMS[kind]}
    files |= {name: f"{name.lstrip('.')}.template" for name in _FILES}
    there = [name for name in files if os.path.lexists(os.path.join(folder, name))]
    if there:
        raise ArgumentError(
            f"{folder!r} has {', '.join(there)} already, so nothing was written. Name a new folder: "
            f"{this_command('init', 'training')}"
        )
    templates = resources.files("torchx_kfp.entrypoints.cli") / "project"
    try:
        os.makedirs(folder, exist_ok=True)
        for name, template in files.items():
            content = (templates / template).read_bytes()
            path = os.path.normpath(os.path.join(folder, name))
            with open(path, "xb") as file:
                file.write(content)
            print_text(path)
    except OSError as error:
        raise ArgumentError(f"The project cannot be written into {folder!r}: {explain(error)}.") from None
    place = "" if os.path.realpath(folder) == os.getcwd() else f"In {folder}: "
    print_message(f"{place}{this_command('run', 'pipeline.py', '--workspace', '.', '--tracker-base', 'results')}")
