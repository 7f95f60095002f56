"""What command lines say of a pipeline: its file, its function in a Python file, its arguments."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchx_kfp.cli.mistakes import describe
from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.sdk import import_kfp, quick_sdk

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline


def load_pipeline_function(target: str) -> Any:
    """The pipeline function that ``FILE`` or ``FILE:NAME`` names.

    The file is imported as a part of the package that it is in, so that a file in ``project/pipelines/`` finds
    ``project/components/``, whatever the current directory; that is importable, too. So it is for the Python programs
    that this process starts as stages.

    Raises:
        PipelineFileError: there is no such file or pipeline, or the file cannot be imported.
    """
    file, name = _split(target)
    path = Path(file)
    if not path.is_file():
        what = f"{file!r} is not a file" if path.exists() else f"There is no file {file!r}"
        raise PipelineFileError(f"{what}. Give a Python file: FILE.py, or FILE.py:NAME.")
    if path.suffix != ".py":
        raise PipelineFileError(f"{file!r} is not a Python file (*.py), so it defines no pipeline function.")
    pipelines = _pipelines(_import(path.resolve()))
    return _choose(pipelines, name, file)


def load_target(target: str) -> Pipeline:
    """The pipeline in a compiled file, or the one that ``FILE.py[:NAME]`` names."""
    from torchx_kfp.local import load_pipeline

    if Path(target.rpartition(":")[0] or target).suffix == ".py" or Path(target).suffix == ".py":
        return load_pipeline(load_pipeline_function(target))
    return load_pipeline(target)


def split_words(words: tuple[str, ...]) -> dict[str, str]:
    """The words ``NAME=VALUE`` of a command line.

    Raises:
        ArgumentError: a word is none, or a name is there twice.
    """
    arguments: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ArgumentError(f"-p {word!r} is not NAME=VALUE. Write, for example, -p lr=0.1.")
        if name in arguments:
            raise ArgumentError(f"-p {name}=... is given twice. Give each parameter once.")
        arguments[name] = value
    return arguments


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may be part of the file's name.
    return (file, name) if colon and not Path(target).exists() else (target, None)


def _import(path: Path) -> ModuleType:
    if "." in path.stem:
        raise PipelineFileError(f"{path} cannot be imported: a module's name has no dot. Rename the file.")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    import_kfp()
    added = [folder for folder in dict.fromkeys((str(root), str(Path.cwd()))) if folder not in sys.path]
    sys.path[:0] = added
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # The arguments of the command line are not the file's.
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        with quick_sdk(), warnings.catch_warnings():
            # Two lines for each component, of which there may be many.
            warnings.filterwarnings("ignore", "The default base_image used by", FutureWarning)
            module = importlib.import_module(".".join(parts))
    except (Exception, SystemExit) as error:
        raise PipelineFileError(describe(path, error)) from error
    finally:
        sys.argv = arguments
        # To the end: a file beside the pipeline may have the name of a library that this program imports later.
        sys.path[:] = [*(folder for folder in sys.path if folder not in added), *added]
    if Path(module.__file__ or "").resolve() != path:
        raise PipelineFileError(
            f"{path} cannot be imported: its name {'.'.join(parts)!r} is that of {module.__file__}. Rename the file."
        )
    return module


def _pipelines(module: ModuleType) -> dict[str, Any]:
    """The pipelines that the module defines; those that it imports only where it defines none."""
    from kfp.dsl import graph_component

    found = {name: value for name, value in vars(module).items() if isinstance(value, graph_component.GraphComponent)}
    own = {name: value for name, value in found.items() if value.pipeline_func.__module__ == module.__name__}
    return own or found


def _choose(pipelines: dict[str, Any], name: str | None, file: str) -> Any:
    there = ", ".join(sorted(pipelines)) or "none"
    if name is not None:
        # The function's name or, as run ids show it, the pipeline's.
        named = [pipeline for key, pipeline in pipelines.items() if name in (key, pipeline.name)]
        if not named:
            raise PipelineFileError(f"{file!r} has no pipeline {name!r}. Its pipelines: {there}.")
        return named[0]
    if not pipelines:
        raise PipelineFileError(f"{file!r} defines no pipeline. Decorate a function with @kfp.dsl.pipeline.")
    if len(pipelines) > 1:
        raise PipelineFileError(f"{file!r} has several pipelines: {there}. Choose one: {file}:{sorted(pipelines)[0]}.")
    return next(iter(pipelines.values()))
