"""The pipeline of a run on a host, and what is known from it and the run's arguments before the run begins."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.errors import PipelineFileError, TorchxKfpError
from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk, without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.resume_record import read_record


@dataclass(frozen=True, eq=False)
class RunPipeline:
    """A pipeline as it runs. Its stages and loops go by their names without indices.

    Attributes:
        pipeline: the pipeline.
        places: its stages, and the groups around them.
        arguments: the values of its parameters.
        tracked: the tracked stages.
        resumes: the id of the run that it resumes; empty if it resumes none.
        kept: the ends of the stages that it has kept of that run.
    """

    pipeline: Pipeline
    places: Mapping[str, ScopedTask]
    arguments: Mapping[str, Any]
    tracked: Mapping[str, ScopedTask]
    resumes: str = ""
    kept: tuple[StageResult, ...] = ()

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> RunPipeline | None:
        """Return the pipeline in v2beta1's answer about a run, if it is there.

        Raises:
            PipelineFileError: it cannot be read.
        """
        spec = run.get("pipeline_spec")
        if not isinstance(spec, Mapping) or not spec:
            return None
        inner = spec.get("pipeline_spec")
        documents = [spec] if inner is None else [inner, spec.get("platform_spec")]
        try:
            pipeline = pipeline_from_documents(
                [each for each in documents if each], f"run {as_text(run.get('run_id'))}"
            )
            arguments = given_arguments(run)
            with contextlib.suppress(TorchxKfpError):  # they are not those of this pipeline
                arguments = complete_arguments(pipeline, arguments)
            places = list(walk(pipeline, arguments=arguments))
            tracked = {place.name: place for place in places if place.is_tracked}
        except (TorchxKfpError, ValueError) as error:
            raise PipelineFileError(f"The pipeline of this run cannot be read: {error}") from None
        resumed = read_record(pipeline.description)
        # The record may be anybody's: it names no files of this machine, and no other places to read.
        ends = resumed.ends if resumed else ()
        return cls(
            pipeline,
            {place.name: place for place in places},
            arguments,
            tracked,
            resumes=resumed.resumes if resumed else "",
            kept=tuple(dataclasses.replace(end, log_file=None, files=(), artifacts={}) for end in ends),
        )

    def is_import(self, stage: str) -> bool:
        """Tell whether a stage is an importer, whose pod runs nothing but KFP's launcher."""
        return self.places[without_indices(stage)].component.importer is not None


def given_arguments(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a run in v2beta1's answer."""
    return dict(as_object(run, "runtime_config", "parameters"))
