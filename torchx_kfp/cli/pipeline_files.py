"""Load the pipeline that a command line names: a compiled file, or a function in a Python file."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchx_kfp.cli.display.printing import this_command
from torchx_kfp.cli.import_errors import explain_import_error
from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.pipeline.load import SUFFIXES, in_a_pipeline, is_torchx_component
from torchx_kfp.sdk import import_kfp, quick_sdk
from torchx_kfp.text import did_you_mean, did_you_mean_path

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline

_PYTHON = ".py"
_TRACEBACK = "--traceback"
#: A component as TorchX's command line names it: utils.echo.
_COMPONENT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def load_pipeline_function(target: str) -> Any:
    """Import the pipeline function that ``FILE`` or ``FILE:NAME`` names.

    The file is imported as part of its package, so that a file in ``project/pipelines/`` finds
    ``project/components/`` from any current directory. Modules in the current directory can also be imported. The same
    is true for the Python programs that this process starts as stages.

    Raises:
        PipelineFileError: the file or the pipeline does not exist, or the file cannot be imported.
    """
    file, name = _split(target)
    path = Path(file)
    if not os.path.isfile(path):
        raise _missing(file, "Give a Python file: FILE.py, or FILE.py:NAME.", (_PYTHON,))
    if path.suffix != _PYTHON:
        raise PipelineFileError(f"{file!r} is not a Python file (*.py), so it does not define a pipeline function.")
    module = _import(path.resolve())
    pipelines = _pipelines(module)
    components = [key for key, value in vars(module).items() if is_torchx_component(value)]
    if name in components or (components and not pipelines and name is None):
        name = name or components[0]
        raise PipelineFileError(f"{name!r} in {file!r} is a TorchX component, not a pipeline. {in_a_pipeline(name)}")
    return _choose(pipelines, name, file)


def load_target(target: str) -> Pipeline:
    """Load the pipeline in a compiled file, or the one that ``FILE.py[:NAME]`` names.

    Raises:
        PipelineFileError: the file or the pipeline does not exist, or the file does not contain a pipeline.
    """
    from torchx_kfp.local import load_pipeline

    file, _ = _split(target)
    path = Path(file)
    if os.path.isdir(path) or not os.path.exists(path):
        way_out = "Give a compiled pipeline (FILE.yaml) or a Python file: FILE.py, or FILE.py:NAME."
        raise _missing(file if path.suffix == _PYTHON else target, way_out, (_PYTHON, *SUFFIXES))
    if path.suffix == _PYTHON:
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


def _missing(file: str, way_out: str, suffixes: Collection[str]) -> PipelineFileError:
    """Return the error for a file that does not exist; the suffixes are those of files to suggest."""
    if _COMPONENT.fullmatch(file) and Path(file).suffix not in suffixes:
        way_out = f"{way_out} {in_a_pipeline(file)}"
    what = f"{file!r} is not a file" if os.path.exists(file) else f"There is no file {file!r}"
    return PipelineFileError(f"{what}.{did_you_mean_path(file, suffixes) or f' {way_out}'}")


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may be part of the file's name.
    return (file, name) if colon and not os.path.exists(target) else (target, None)


def _import(path: Path) -> ModuleType:
    if "." in path.stem:
        raise PipelineFileError(f"{path} cannot be imported: a module's name must not contain a dot. Rename the file.")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    import_kfp()
    added = [folder for folder in dict.fromkeys((str(root), str(Path.cwd()))) if folder not in sys.path]
    sys.path[:0] = added
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    with_traceback = "" if _TRACEBACK in sys.argv[1:2] else this_command(_TRACEBACK, *sys.argv[1:])
    # The arguments of the command line are not the file's.
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        with quick_sdk(), warnings.catch_warnings():
            # The warning is two lines long, and comes for each of many components.
            warnings.filterwarnings("ignore", "The default base_image used by", FutureWarning)
            module = importlib.import_module(".".join(parts))
    except (Exception, SystemExit) as error:
        raise PipelineFileError(explain_import_error(path, error, with_traceback)) from error
    finally:
        sys.argv = arguments
        # Move them to the end: a file next to the pipeline may have the name of a library that is imported later.
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
        # The name may be the function's or, as in run ids, the pipeline's.
        named = [pipeline for key, pipeline in pipelines.items() if name in (key, pipeline.name)]
        if not named:
            known = [*pipelines, *(pipeline.name for pipeline in pipelines.values())]
            raise PipelineFileError(
                f"{file!r} has no pipeline {name!r}.{did_you_mean(name, known)} Its pipelines: {there}."
            )
        return named[0]
    if not pipelines:
        raise PipelineFileError(f"{file!r} does not define a pipeline. Decorate a function with @kfp.dsl.pipeline.")
    if len(pipelines) > 1:
        raise PipelineFileError(f"{file!r} has several pipelines: {there}. Choose one: {file}:{sorted(pipelines)[0]}.")
    return next(iter(pipelines.values()))
