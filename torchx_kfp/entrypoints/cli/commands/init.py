"""``torchx-kfp init``: write a small project that runs at once."""

from __future__ import annotations

import os
from importlib import resources

import click

from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, this_command
from torchx_kfp.errors import ArgumentError, explain

#: The files of the project. The package has each as a template, without the dot of hidden files.
_FILES = ("README.md", "pipeline.py", "data.py", "prepare.py", "train.py", "Dockerfile", ".torchxignore")


@click.command("init")
@click.argument("folder", metavar="[DIR]", default=".")
def init_command(folder: str) -> None:
    """Write a small project into DIR, the current directory by default, and print the names of its files.

    It is a pipeline of two Python functions with results between them, and a Dockerfile whose image needs no
    rebuild while the code changes. Its README.md has the commands. Nothing is overwritten.

    \b
    torchx-kfp init training
    """
    there = [name for name in _FILES if os.path.lexists(os.path.join(folder, name))]
    if there:
        raise ArgumentError(
            f"{folder!r} has {', '.join(there)} already, so nothing was written. Name a new folder: "
            f"{this_command('init', 'training')}"
        )
    templates = resources.files("torchx_kfp.entrypoints.cli") / "project"
    try:
        os.makedirs(folder, exist_ok=True)
        for name in _FILES:
            content = (templates / f"{name.lstrip('.')}.template").read_bytes()
            path = os.path.normpath(os.path.join(folder, name))
            with open(path, "xb") as file:
                file.write(content)
            print_text(path)
    except OSError as error:
        raise ArgumentError(f"The project cannot be written into {folder!r}: {explain(error)}.") from None
    place = "" if os.path.realpath(folder) == os.getcwd() else f"In {folder}: "
    print_message(f"{place}{this_command('run', 'pipeline.py', '--workspace', '.', '--tracker-base', 'results')}")
