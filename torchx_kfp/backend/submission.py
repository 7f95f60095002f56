"""The options of a submission, besides the pipeline and its arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Submission:
    """The options with which a run is submitted. The host decides those that are empty.

    Attributes:
        name: the run's name in KFP's UI; by default, that of the pipeline with the date.
        experiment: the name of its experiment, which is created if it does not exist.
        service_account: the Kubernetes service account of the stages.
        pipeline_root: where KFP stores the run's artifacts.
        cache: False to run all stages, even those in nested pipelines and loops, whatever the pipeline says.
    """

    name: str = ""
    experiment: str = ""
    service_account: str = ""
    pipeline_root: str = ""
    cache: bool = True
