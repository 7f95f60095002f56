"""Loads the pipeline that a command line names: a compiled file, or a function in a Python file."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchx_kfp.cli.import_errors import explain_import_error
from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.sdk import import_kfp, quick_sdk

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline


def load_pipeline_function(target: str) -> Any:
    """Import the pipeline function that ``FILE`` or ``FILE:NAME`` names.

    The file is imported as part of its package, so that a file in ``project/pipelines/`` finds
    ``project/components/`` from any current directory, which can be imported from too. The same holds for the Python
    programs that this process starts as stages.

    Raises:
        PipelineFileError: the file or the pipeline does not exist, or the file cannot be imported.
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
    """Load the pipeline in a compiled file, or the one that ``FILE.py[:NAME]`` names."""
    from torchx_kfp.local import load_pipeline

    if Path(target.rpartition(":")[0] or target).suffix == ".py" or Path(target).suffix == ".py":
        return load_pipeline(load_pipeline_function(target))
    return load_pipeline(target)


def split_words(words: tuple[str, ...]) -> dict[str, str]:
    """Parse the words ``NAME=VALUE`` of a command line.

    Raises:
        ArgumentError: a word has another form, or a name is given twice.
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
            # It is two lines long, for each of many components.
            warnings.filterwarnings("ignore", "The default base_image used by", FutureWarning)
            module = importlib.import_module(".".join(parts))
    except (Exception, SystemExit) as error:
        raise PipelineFileError(explain_import_error(path, error)) from error
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
    """Return the pipelines that the module defines; if it defines none, those that it imports."""
    from kfp.dsl import graph_component

    found = {name: value for name, value in vars(module).items() if isinstance(value, graph_component.GraphComponent)}
    own = {name: value for name, value in found.items() if value.pipeline_func.__module__ == module.__name__}
    return own or found


def _choose(pipelines: dict[str, Any], name: str | None, file: str) -> Any:
    there = ", ".join(sorted(pipelines)) or "none"
    if name is not None:
        # The name of the function or, as in run ids, of the pipeline.
        named = [pipeline for key, pipeline in pipelines.items() if name in (key, pipeline.name)]
        if not named:
            raise PipelineFileError(f"{file!r} has no pipeline {name!r}. Its pipelines: {there}.")
        return named[0]
    if not pipelines:
        raise PipelineFileError(f"{file!r} defines no pipeline. Decorate a function with @kfp.dsl.pipeline.")
    if len(pipelines) > 1:
        raise PipelineFileError(f"{file!r} has several pipelines: {there}. Choose one: {file}:{sorted(pipelines)[0]}.")
    return next(iter(pipelines.values()))
