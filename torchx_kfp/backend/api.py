"""``submit`` and ``attach``: runs on a KFP host from Python, as ``torchx-kfp submit`` and ``watch`` have them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from torchx_kfp.backend.checks import bases_of, check_submission, refuse_submission
from torchx_kfp.backend.connection import Connection
from torchx_kfp.backend.host import Host as Host
from torchx_kfp.backend.host import RunSummary as RunSummary
from torchx_kfp.backend.run import HostRun as HostRun
from torchx_kfp.backend.settings import read_settings
from torchx_kfp.backend.submission import Submission
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.load import PipelineLike, load_pipeline

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


class HostKeywords(TypedDict, total=False):
    """The settings of the connection: see ``settings.Settings``. None leaves one to the environment and the file."""

    host: str | None
    ui_host: str | None
    namespace: str | None
    service_namespace: str | None
    existing_token: str | None
    token_file: str | None
    cookies: str | None
    client_id: str | None
    other_client_id: str | None
    other_client_secret: str | None
    ssl_ca_cert: str | None
    verify_ssl: bool | None
    kube_context: str | None
    proxy: str | None


def submit(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    experiment: str = "",
    service_account: str = "",
    pipeline_root: str = "",
    cache: bool = True,
    **settings: Unpack[HostKeywords],
) -> HostRun:
    """Start a run on a KFP host.

    Args:
        pipeline: the path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        name: the run's name in KFP's UI; by default, that of the pipeline with the date.
        experiment: the name of its experiment, which is created if it does not exist.
        service_account: the Kubernetes service account of the stages.
        pipeline_root: where KFP stores the run's artifacts.
        cache: False to run all stages, whatever the pipeline says.
        settings: the connection, such as ``host="https://kfp.example.com"``: see ``HostKeywords``.

    Returns:
        The run. It goes on by itself, and ``.wait()`` returns its result.

    Raises:
        PipelineFileError: the file is not a compiled pipeline.
        UnsupportedPipelineError: the pipeline would fail on KFP, or its pods cannot reach the tracker base.
        ArgumentError: the arguments do not fit the pipeline's parameters.
        HostError: there is no host, it does not answer, or it refuses the run.
    """
    submission = Submission(name, experiment, service_account, pipeline_root, cache)
    loaded = load_pipeline(pipeline)
    values = complete_arguments(loaded, arguments or {})
    refuse_submission(loaded, check_submission(loaded, values))
    host = _connect(settings)
    return HostRun(host.connection, host.submit(loaded, arguments, submission), named=bases_of(loaded, values))


def attach(run: str, **settings: Unpack[HostKeywords]) -> HostRun:
    """Return a run on a KFP host.

    Args:
        run: its id, at least 4 characters of its beginning, its name in KFP's UI, the URL of its page there, or
            ``latest``.
        settings: the connection, as for ``submit``.

    Raises:
        UnknownRunError: there is no such run.
        HostError: there is no host, or it does not answer.
    """
    host = _connect(settings)
    return HostRun(host.connection, host.find(run))


def _connect(settings: HostKeywords) -> Host:
    found = read_settings(settings)
    for sentence in found.warnings:
        warnings.warn(sentence, stacklevel=3)  # where the user has called submit or attach
    return Host(Connection(found))
