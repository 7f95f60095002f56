"""Artifacts by their URIs, for KFP's own components and for KFP's lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp import dsl
from kfp.dsl import pipeline_context

from torchx_kfp.authoring.channels import contains_channel, parse
from torchx_kfp.authoring.references import Channel, Reference
from torchx_kfp.authoring.stages import check_in_pipeline
from torchx_kfp.errors import ChannelError, OutputsError


def artifact_from_uri(
    uri: str | Channel, artifact_class: type[dsl.Artifact] = dsl.Artifact, *, metadata: Mapping[str, Any] | None = None
) -> Any:
    """Make a KFP artifact with this URI, for KFP's own components and for KFP's lineage.

    If a stage registers an artifact by its URL, KFP's artifact has a different URI: that of a small file that names the
    URL. An artifact that this function makes has the URI itself::

        evaluated = task_from_app(app, tracker_base=tracker_base, results={"model_uri": str})
        deploy(model=artifact_from_uri(evaluated.outputs["model_uri"], dsl.Model))

    KFP downloads it before it starts a component that takes it, with the credentials of the ConfigMap ``kfp-launcher``.
    If they do not grant access, the component fails.

    Args:
        uri: the URI, such as ``s3://models/7``: a constant, or an output, a parameter or a loop item that is a string.
        artifact_class: ``dsl.Model``, ``dsl.Dataset`` or another artifact class.
        metadata: the artifact's metadata, which must be constants.

    Returns:
        The artifact, to pass to a component.

    Raises:
        OutputsError: the metadata contains a channel.
        ChannelError: the URI is text with a channel inside, or not a string.
    """
    check_in_pipeline("artifact_from_uri", "it makes an artifact of that pipeline")
    if contains_channel(dict(metadata or {})):
        raise OutputsError(f"metadata of artifact_from_uri is {metadata!r}. Give constants, which KFP can write.")
    given = _parse_uri(uri)

    # On a backend, KFP's importer accepts a parameter of its pipeline, but not an output of a task. So it is put into a
    # nested pipeline, whose parameter can be either.
    def body(uri: str) -> Any:
        return dsl.importer(artifact_uri=uri, artifact_class=artifact_class, metadata=dict(metadata or {})).output

    body.__doc__ = "An artifact by its URI"
    body.__annotations__ = {"uri": str, "return": artifact_class}
    # KFP does not allow defining a pipeline while another one is being defined.
    around, pipeline_context.Pipeline._default_pipeline = pipeline_context.Pipeline._default_pipeline, None
    try:
        component = dsl.pipeline(name="artifact-from-uri")(body)
    finally:
        pipeline_context.Pipeline._default_pipeline = around
    return component(uri=given).output


def _parse_uri(uri: object) -> object:
    """Return the URI of an artifact: a channel for a string, or constant text."""
    first, *rest = parse(uri, "uri")
    kind = first.type if isinstance(first, Reference) else "STRING"
    if rest or first == "" or kind != "STRING":
        raise ChannelError(
            f"uri is {str(uri)!r} of type {kind}. Give a URI such as 's3://models/7', or a channel that is the whole "
            "URI: let the stage record it as a result."
        )
    return first.argument if isinstance(first, Reference) else first
