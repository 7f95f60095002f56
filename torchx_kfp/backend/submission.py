"""How a run is submitted: what the request says beside the pipeline and its arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Submission:
    """What is said of a run when it is submitted. Empty texts leave a thing to the host.

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
