"""Reading a compiled pipeline: a YAML file, or a pipeline function that is compiled first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

import yaml

from torchx_kfp.errors import PipelineFileError
from torchx_kfp.local.ir import MalformedError, read_pipeline
from torchx_kfp.local.spec import Pipeline
from torchx_kfp.sdk import quick_sdk

PipelineLike = Union[Pipeline, str, "os.PathLike[str]", Callable[..., Any]]

# libyaml's loader is about ten times as fast; it is missing where PyYAML was built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_pipeline(pipeline: PipelineLike) -> Pipeline:
    """The pipeline in a compiled file, or of a pipeline function.

    Args:
        pipeline: path of a compiled pipeline, a function decorated with ``dsl.pipeline``, or a loaded pipeline.

    Raises:
        PipelineFileError: there is no such file, or it holds no compiled KFP v2 pipeline.
    """
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, (str, os.PathLike)):
        return _load_file(Path(pipeline))
    return _compile(pipeline)


def _compile(function: Callable[..., Any]) -> Pipeline:
    from kfp import dsl
    from kfp.dsl.base_component import BaseComponent

    if not isinstance(function, BaseComponent):
        if not callable(function):
            raise PipelineFileError(
                f"{function!r} is no pipeline: pass the path of a compiled pipeline, or a function decorated with "
                "kfp.dsl.pipeline."
            )
        with quick_sdk():
            function = dsl.pipeline(function)
    text = compile_text(function)
    return pipeline_from_documents(_documents(text), repr(function), text)


def compile_text(function: Any, name: str = "") -> str:
    """The YAML that KFP compiles a pipeline function to.

    Args:
        function: decorated with ``dsl.pipeline``.
        name: what it is called in messages; its own name where it is empty.

    Raises:
        PipelineFileError: KFP compiles it to no YAML.
    """
    from kfp import compiler

    with quick_sdk(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(function, str(path))
        text = path.read_text(encoding="utf-8")
    try:
        _documents(text)
    except yaml.YAMLError as error:
        raise PipelineFileError(
            f"KFP compiles {name or function.name} to a file that is not valid YAML. It writes parameters' defaults "
            f"and descriptions into comments, where a line break does harm: leave it out of them. ({error})"
        ) from None
    return text


def _load_file(path: Path) -> Pipeline:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineFileError(
            f"There is no file {str(path)!r}. Give the path of a compiled pipeline, for example one that "
            "kfp.compiler.Compiler().compile(...) wrote."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError(f"The file {str(path)!r} cannot be read as a compiled pipeline: {error}.") from None
    try:
        documents = _documents(text)
    except yaml.YAMLError as error:
        raise PipelineFileError(f"The file {str(path)!r} is not valid YAML: {error}") from None
    except RecursionError:
        raise PipelineFileError(
            f"The file {str(path)!r} is no compiled pipeline: it holds lists or dicts that are nested too deep."
        ) from None
    return pipeline_from_documents(documents, str(path), text)


def _documents(text: str) -> list[Any]:
    # JSON is not quite YAML: PyYAML takes the number 1e-05 for text.
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return [json.loads(text)]
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def pipeline_from_documents(documents: list[Any], path: str, text: str | None = None) -> Pipeline:
    """The pipeline in these YAML documents: the PipelineSpec, and the platform spec if there is one.

    Args:
        documents: what the file holds.
        path: named in errors.
        text: the file's, where there is one.

    Raises:
        PipelineFileError: they are not a compiled KFP v2 pipeline.
    """
    mappings = [part for document in documents if isinstance(document, dict) for part in _parts(document)]
    specs = [document for document in mappings if "root" in document and "pipelineInfo" in document]
    if len(specs) != 1:
        raise PipelineFileError(f"The file {path!r} is not a compiled KFP v2 pipeline: {_what_it_is(mappings)}")
    platforms: dict[str, Any] = {}
    for document in mappings:
        platforms.update(document.get("platforms") or {})
    try:
        pipeline = read_pipeline(specs[0], platforms.get("kubernetes") or {})
    except (MalformedError, KeyError, TypeError, AttributeError, ValueError) as error:
        what = str(error) if isinstance(error, MalformedError) else f"{type(error).__name__}: {error}"
        raise PipelineFileError(
            f"The file {path!r} is a damaged KFP v2 pipeline ({what}). Compile it again instead of editing it."
        ) from None
    return dataclasses.replace(pipeline, text=yaml.safe_dump_all(documents) if text is None else text)


def _parts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The document; or the two in it, if it is a manifest of Kubernetes's as KFP compiles pipelines to, too."""
    content = document.get("spec")
    if document.get("kind") != "PipelineVersion" or not isinstance(content, dict):
        return [document]
    parts = [content.get("pipelineSpec"), content.get("platformSpec")]
    return [part for part in parts if isinstance(part, dict)] or [document]


def _what_it_is(documents: list[dict[str, Any]]) -> str:
    kinds = [str(document["kind"]) for document in documents if "kind" in document]
    if "Workflow" in kinds:
        return "it is an Argo workflow, which KFP v1 compiled to. Compile the pipeline again with kfp 2."
    if kinds:
        names = ", ".join(kinds)
        return f"it is a Kubernetes manifest ({names}). Compile the pipeline without Kubernetes manifest format."
    if any("implementation" in document for document in documents):
        return "it is a component of KFP v1. Compile a pipeline that uses it, with kfp 2."
    keys = [repr(key) for key in sorted({str(key) for document in documents for key in document})[:8]]
    return (
        f"it has {', '.join(keys) or 'no mapping'} at its top level, and no pipelineInfo and root. Compile a pipeline "
        "with kfp.compiler.Compiler().compile(...) and give that file."
    )
