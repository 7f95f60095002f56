"""Load a pipeline from compiled YAML or a pipeline function, which is compiled first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union

import yaml

from torchx_kfp.common.safe_files import open_regular
from torchx_kfp.common.text import did_you_mean_path
from torchx_kfp.errors import PipelineError, TorchxKfpError
from torchx_kfp.execution.pipeline.reader import MalformedError, TaskCycleError, read_pipeline
from torchx_kfp.execution.pipeline.spec import Pipeline

PipelineLike = Union[Pipeline, str, "os.PathLike[str]", Callable[..., Any]]

#: The usual suffixes of compiled pipelines, for suggestions.
SUFFIXES = (".yaml", ".yml", ".json")

#: The limits of a file: its bytes, the levels of nested lists and dicts, and its values. A pipeline that KFP accepts
#: has at most 1.5 MB, and some twenty levels.
_LONGEST = 16 << 20
_DEEPEST = 100
_MOST_EVENTS = 1_000_000
_MERGE = "tag:yaml.org,2002:merge"
#: The pipelines in the last large texts, and how many characters such a text has: a command may read the pipeline of a
#: run several times, and YAML of 1,000 stages takes seconds.
_RECENT: dict[str, Pipeline] = {}
_LARGE = 100_000
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOO_DEEP = f"it contains lists or dicts that are nested more than {_DEEPEST} levels deep"


def load_pipeline(pipeline: PipelineLike) -> Pipeline:
    """Return the pipeline in a compiled file or from a pipeline function.

    Args:
        pipeline: the path of a compiled pipeline, a function decorated with ``dsl.pipeline``, or a loaded pipeline.

    Raises:
        PipelineError: there is no such file, or it is not a compiled KFP v2 pipeline.
    """
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, (str, os.PathLike)):
        return load_file(Path(pipeline))
    from kfp import dsl
    from kfp.dsl.base_component import BaseComponent

    if isinstance(pipeline, BaseComponent):
        return compile_function(pipeline)
    if not callable(pipeline):
        raise PipelineError(
            f"{pipeline!r} is not a pipeline: pass the path of a compiled pipeline, or a function decorated with "
            "kfp.dsl.pipeline."
        )
    if is_torchx_component(pipeline):
        name = pipeline.__name__
        raise PipelineError(f"{name!r} is a TorchX component, not a pipeline. {in_a_pipeline(name)}")
    return compile_function(dsl.pipeline(pipeline))


def is_torchx_component(function: object) -> bool:
    """Return whether a function is annotated to return an AppDef."""
    returns = getattr(function, "__annotations__", {}).get("return")
    return callable(function) and str(getattr(returns, "__name__", returns)).rpartition(".")[2] == "AppDef"


def in_a_pipeline(component: str) -> str:
    """Explain how to run a TorchX component."""
    return (
        f"A TorchX component runs as a stage of a pipeline: write a function with @kfp.dsl.pipeline, and in it "
        f"task_from_app({component}(...)), or component_from_function({component}) for arguments that are channels."
    )


def compile_function(function: Any, name: str = "") -> Pipeline:
    """Compile a pipeline function. The ``text`` of the returned pipeline is the YAML.

    Args:
        function: a function decorated with ``dsl.pipeline``.
        name: its name in messages; if empty, its own name.

    Raises:
        PipelineError: KFP compiles it to text that is not YAML.
    """
    from kfp import compiler

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(function, str(path))
        text = path.read_text(encoding="utf-8")
    try:
        documents = _documents(text, is_compiled=True)
    except yaml.YAMLError as error:
        raise PipelineError(
            f"KFP compiles {name or function.name} to a file that is not valid YAML. It writes parameters' defaults "
            f"and descriptions into comments, which a line break would end: remove line breaks from them. ({error})"
        ) from None
    pipeline = pipeline_from_documents(documents, name or function.name, text, kind="pipeline")
    _remember(text, pipeline)
    return dataclasses.replace(pipeline, is_compiled_here=True)


def load_file(path: Path, root: Path | None = None) -> Pipeline:
    """Return the pipeline in a file, which must be inside ``root``. The errors are those of ``load_pipeline``."""
    try:
        # A file that the user names may be a pipe, such as that of <(command).
        with path.open("rb") if root is None else open_regular(str(path), str(root)) as file:
            data = file.read(_LONGEST + 1)
        if len(data) > _LONGEST:
            raise PipelineError(
                f"The file {str(path)!r} is not a compiled pipeline: it is larger than {_LONGEST >> 20} MiB."
            )
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise PipelineError(
            f"There is no file {str(path)!r}.{did_you_mean_path(path, SUFFIXES)} Give the path of a compiled pipeline, "
            "such as one that kfp.compiler.Compiler().compile(...) wrote, or the pipeline function itself."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"The file {str(path)!r} cannot be read as a compiled pipeline: {error}.") from None
    if path.suffix == ".py":
        raise PipelineError(
            f"The file {str(path)!r} is a Python file, not a compiled pipeline. Import its function and pass that, or "
            f"compile it first: torchx-kfp compile {path} -o pipeline.yaml"
        )
    return pipeline_from_text(text, str(path))


def pipeline_from_text(text: str, name: str = "pipeline.yaml") -> Pipeline:
    """Return the pipeline in the text of a compiled file.

    Args:
        text: the text.
        name: the name of the file in messages.

    Raises:
        PipelineError: it is not a compiled KFP v2 pipeline.
    """
    if text in _RECENT:
        return _RECENT[text]
    try:
        documents = _documents(text)
    except _TooMuch as error:
        raise PipelineError(f"The file {name!r} is not a compiled pipeline: {error}.") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError) as error:
        # PyYAML does not catch Python's exceptions about malformed dates, numbers and keys.
        raise PipelineError(f"The file {name!r} is not valid YAML: {error}") from None
    pipeline = pipeline_from_documents(documents, name, text)
    _remember(text, pipeline)
    return pipeline


def _remember(text: str, pipeline: Pipeline) -> None:
    if len(text) > _LARGE:
        while len(_RECENT) > 1:
            del _RECENT[next(iter(_RECENT))]
        _RECENT[text] = pipeline


def _documents(text: str, *, is_compiled: bool = False) -> list[Any]:
    """Parse YAML or JSON. Text just compiled by KFP needs no limits, and is read faster without them."""
    # PyYAML reads the number 1e-05 of JSON as text.
    if text.lstrip().startswith(("{", "[")):
        try:
            document = json.loads(text)
        except RecursionError:
            raise _TooMuch(_TOO_DEEP) from None
        except ValueError:
            pass
        else:
            verify_depth(document)
            return document if isinstance(document, list) else [document]
    if not is_compiled:
        _verify_events(text)
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def _verify_events(text: str) -> None:
    """Raise _TooMuch for YAML that would exhaust the memory or C's stack, before it is loaded."""
    level = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for count, event in enumerate(events):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _DEEPEST:
            raise _TooMuch(_TOO_DEEP)
        if count > _MOST_EVENTS:
            raise _TooMuch(f"it has more than {_MOST_EVENTS:,} values")
        if isinstance(event, yaml.ScalarEvent) and (event.tag == _MERGE or (event.implicit[0] and event.value == "<<")):
            raise _TooMuch("it merges mappings (<<), which KFP's compiler does not")


def verify_depth(value: Any, deepest: int = _DEEPEST) -> None:
    """Raise ValueError if lists or dicts in a value are nested more deeply."""
    level = [value]
    for _ in range(deepest):
        inner = (list(item.values()) if isinstance(item, dict) else item for item in level)
        level = [part for items in inner if isinstance(items, list) for part in items if isinstance(part, (dict, list))]
        if not level:
            return
    raise _TooMuch(_TOO_DEEP)


class _TooMuch(ValueError):
    """A file exceeds the limits of pipelines; the message follows "is not a compiled pipeline:"."""


def pipeline_from_documents(documents: list[Any], path: str, text: str = "", *, kind: str = "file") -> Pipeline:
    """Return the pipeline in these YAML documents: the PipelineSpec, and the platform spec, if any.

    Args:
        documents: the file's documents.
        path: the file's path, for messages.
        text: the file's text, if there is a file.
        kind: the kind of the named object, for messages.

    Raises:
        PipelineError: they are not a compiled KFP v2 pipeline.
    """
    mappings = [document for document in documents if isinstance(document, dict)]
    specs = [document for document in mappings if "root" in document and "pipelineInfo" in document]
    if len(specs) != 1:
        raise PipelineError(f"The {kind} {path!r} is not a compiled KFP v2 pipeline: {_what_it_is(mappings)}")
    platform = {key: value for document in mappings if document is not specs[0] for key, value in document.items()}
    # Each document may have the settings of other platforms. What is no object, the reader refuses.
    others = [document["platforms"] for document in mappings if isinstance(document.get("platforms"), dict)]
    if isinstance(platform.get("platforms", {}), dict) and others:
        platform["platforms"] = {name: settings for platforms in others for name, settings in platforms.items()}
    with pipeline_errors(f"The {kind} {path!r}"):
        return read_pipeline(specs[0], platform, text)


@contextlib.contextmanager
def pipeline_errors(what: str) -> Iterator[None]:
    """Turn errors about malformed parts into a PipelineError about the pipeline with this name."""
    try:
        yield
    except TorchxKfpError:
        raise
    except TaskCycleError as error:
        raise PipelineError(
            f"{what} cannot run: {error}. Remove one of the dependencies: an .after(), a stage in reads, or an output "
            "that is passed on."
        ) from None
    except (MalformedError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, MalformedError) else f"{type(error).__name__}: {error}"
        why = f"{error} is missing" if isinstance(error, KeyError) else why
        raise PipelineError(
            f"{what} is a damaged KFP v2 pipeline ({why}). Compile it again instead of editing it."
        ) from error


def _what_it_is(documents: list[dict[str, Any]]) -> str:
    kinds = [str(document["kind"]) for document in documents if "kind" in document]
    if "Workflow" in kinds:
        return "it is an Argo workflow, compiled by KFP v1. Compile the pipeline again with kfp 2."
    if kinds:
        names = ", ".join(kinds)
        return f"it is a Kubernetes manifest ({names}). Compile the pipeline without Kubernetes manifest format."
    if any("implementation" in document for document in documents):
        return "it is a component of KFP v1. Use kfp 2 to compile a pipeline that uses it."
    if any(isinstance(document.get("pipelineSpec"), dict) for document in documents):
        return (
            "it is a PipelineJob of Vertex AI or TFX. The pipeline is the value of its key pipelineSpec: save that "
            "as a separate file."
        )
    keys = [repr(key) for key in sorted({str(key) for document in documents for key in document})[:8]]
    found = f"{', '.join(keys)}, but not both" if keys else "no mapping with"
    return (
        f"it has {found} pipelineInfo and root at its top level. Compile a pipeline with "
        "kfp.compiler.Compiler().compile(...), and give that file."
    )
