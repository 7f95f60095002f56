"""The API's routes: the effect of each request on a host's runs and experiments, and its answer."""

from __future__ import annotations

import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import safe_name
from torchx_kfp_dev_host.answers import Record, Refused, describe_run, shown_time
from torchx_kfp_dev_host.argo import LETTERS, Naming
from torchx_kfp_dev_host.lists import page_of
from torchx_kfp_dev_host.runs import LocalRun, Run

_ID = "[^/:]+"
R = TypeVar("R", bound=Run)


class Api:
    """The runs and experiments of a host."""

    run = LocalRun

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """Begin with the experiment Default; ``options`` are those of local runs, which are made in the folder."""
        self._folder = folder
        self._options = options
        self._lock = threading.RLock()
        self.runs: dict[str, Run] = {}
        self._experiments: dict[str, dict[str, Any]] = {}
        self._add_experiment("Default", "All runs created without specifying an experiment will be grouped here.")

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        """Return the answer to a request: a JSON value, or text.

        Raises:
            Refused: the answer is an error.
        """
        for verb, pattern, handler in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found and verb == method:
                with self._lock:
                    return getattr(self, handler)(*found.groups(), query=query, body=body or {})
        raise Refused(501, 12, f"The dev host does not have {method} {path}")

    def add_run(self, make: Callable[..., R], pipeline: Pipeline, spec: Mapping[str, Any], **of_record: Any) -> R:
        """Add a run of the class ``make``; ``spec`` is the pipeline as a request has it."""
        workflow = f"{safe_name(pipeline.name).lower()}-{''.join(secrets.choice(LETTERS) for _ in range(5))}"
        now = time.time()
        default = next(iter(self._experiments))
        record = Record(
            run_id=str(uuid.uuid4()),
            pipeline_spec=spec,
            created=now,
            history=[("PENDING", now)],
            **{"experiment_id": default, "display_name": pipeline.name, "workflow": workflow, **of_record},
        )
        run = make(record, pipeline, Naming(record.workflow))
        with self._lock:
            self.runs[record.run_id] = run
            self._experiments[record.experiment_id]["last_run_created_at"] = shown_time(now)
        return run

    def _health(self, **_: Any) -> Any:
        return {"commit_sha": "unknown", "tag_name": "unknown", "multi_user": False, "pipeline_store": "database"}

    def _find(self, run_id: str) -> Run:
        if run_id not in self.runs:
            cause = f"Run {run_id} not found"
            before = f"Failed to get a run: Failed to fetch run {run_id}"
            raise Refused(404, 5, f"{before}: ResourceNotFoundError: {cause}", cause)
        return self.runs[run_id]

    def _get_run(self, run_id: str, **_: Any) -> Any:
        return self._find(run_id).describe()

    def _get_run_v1(self, run_id: str, **_: Any) -> Any:
        return self._find(run_id).describe_v1()

    def _list_runs(self, *, query: Mapping[str, str], **_: Any) -> Any:
        experiments = (query.get("experiment_id"),) if query.get("experiment_id") else self._experiments
        runs = [run.describe() for run in self.runs.values() if run.record.experiment_id in experiments]
        return page_of(runs, query, "runs")

    def _create_run(self, *, body: Any, query: Mapping[str, str], **_: Any) -> Any:
        given = body.get("experiment_id") or query.get("experiment_id")
        run = self._make_run(body, given or next(iter(self._experiments)))
        answer = describe_run(run.record)
        try:
            run.start(self._folder, self._options)
        except Exception:  # whatever it is: a run that has not begun would never end
            del self.runs[run.record.run_id]
            raise
        return answer

    def _make_run(self, body: Any, experiment: str) -> LocalRun:
        """Add the run that a request describes, without starting it.

        Raises:
            Refused: there is no such experiment, the pipeline is broken, or its arguments do not fit.
        """
        before = "Failed to create a new run: "
        spec = body.get("pipeline_spec")
        if spec is None:
            raise Refused(400, 3, f"{before}the dev host needs a pipeline")
        documents = [spec["pipeline_spec"], spec.get("platform_spec")] if "pipeline_spec" in spec else [spec]
        if experiment not in self._experiments:
            cause = f"Experiment {experiment} not found"
            raise Refused(404, 5, f"Failed to get an experiment: ResourceNotFoundError: {cause}", cause)
        try:
            pipeline = pipeline_from_documents([each for each in documents if each], "pipeline_spec")
        except TorchxKfpError:
            raise Refused(500, 13, f"{before}{_BROKEN}", "Internal Server Error") from None
        _verify_arguments(pipeline, _given(body.get("runtime_config")).get("parameters", {}), before)
        return self.add_run(
            self.run,
            pipeline,
            spec,
            display_name=body["display_name"],
            description=body.get("description", ""),
            experiment_id=experiment,
            runtime_config=_given(body.get("runtime_config")) or None,
            service_account=body.get("service_account") or "pipeline-runner",
        )

    def _terminate(self, run_id: str, **_: Any) -> Any:
        run = self._find(run_id)
        run.describe()
        if run.record.finished is not None:
            cause = f"Failed to terminate run {run_id}. Row not found"
            raise Refused(400, 3, f"Failed to terminate a run: Invalid input error: {cause}", cause)
        run.terminate()
        return {}

    def _retry(self, run_id: str, **_: Any) -> Any:
        run = self._find(run_id)
        # Refusals were not recorded; this one is in the source of KFP's API server.
        if run.describe()["state"] != "FAILED":
            cause = f"Failed to retry run {run_id} as it does not allow retries: Workflow must be Failed/Error to retry"
            raise Refused(500, 13, f"Failed to retry a run: InternalServerError: {cause}", "Internal Server Error")
        run.retry()
        return {}

    def delete(self, run_id: str, **_: Any) -> Any:
        """Delete a run."""
        run = self._find(run_id)
        run.stop()
        run.close()
        del self.runs[run_id]
        return {}

    def _log(self, run_id: str, pod: str, **_: Any) -> Any:
        run = self._find(run_id)
        text = run.log(pod)
        if text is None:
            message = f'Failed to read logs: pods "{pod}" not found'
            error = Refused(500, 13, message)
            error.answer = {"error_message": message, "error_details": message}
            raise error
        return text

    def _add_experiment(self, name: str, description: str) -> dict[str, Any]:
        identity = str(uuid.uuid4())
        self._experiments[identity] = {
            "experiment_id": identity,
            "display_name": name,
            **({"description": description} if description else {}),
            "created_at": shown_time(time.time()),
            "storage_state": "AVAILABLE",
            "last_run_created_at": shown_time(0),
        }
        return self._experiments[identity]

    def _list_experiments(self, *, query: Mapping[str, str], **_: Any) -> Any:
        return page_of(list(self._experiments.values()), query, "experiments")

    def _create_experiment(self, *, body: Any, **_: Any) -> Any:
        name = body.get("display_name", "")
        if any(each["display_name"] == name for each in self._experiments.values()):
            cause = f"The name {name} already exist. Please specify a new name"
            raise Refused(409, 6, f"Failed to create a new experiment: Already exist error: {cause}", cause)
        return self._add_experiment(name, body.get("description", ""))


_ROUTES = [
    ("GET", "/apis/v2beta1/healthz", "_health"),
    ("GET", "/apis/v2beta1/runs", "_list_runs"),
    ("POST", "/apis/v2beta1/runs", "_create_run"),
    ("GET", f"/apis/v2beta1/runs/({_ID})", "_get_run"),
    ("DELETE", f"/apis/v2beta1/runs/({_ID})", "delete"),
    ("POST", f"/apis/v2beta1/runs/({_ID}):terminate", "_terminate"),
    ("POST", f"/apis/v2beta1/runs/({_ID}):retry", "_retry"),
    ("GET", "/apis/v2beta1/experiments", "_list_experiments"),
    ("POST", "/apis/v2beta1/experiments", "_create_experiment"),
    ("GET", f"/apis/v1beta1/runs/({_ID})", "_get_run_v1"),
    ("GET", f"/apis/v1alpha1/runs/({_ID})/nodes/({_ID})/log", "_log"),
]
_BROKEN = (
    "InternalServerError: Failed to create a run due to error fetching manifest: Failed "
    "to fetch a template with an invalid pipeline spec manifest: InvalidInputError: unknown template format: pipeline "
    "spec is invalid"
)


def _given(config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (config or {}).items() if value}


def _verify_arguments(pipeline: Pipeline, arguments: Mapping[str, Any], before: str) -> None:
    before += "Failed to generate the ExecutionSpec: invalid pipeline job inputs: "
    for name, parameter in pipeline.root.parameter_inputs.items():
        if name not in arguments and not parameter.has_default and not parameter.optional:
            cause = f"parameter {name} is not optional, yet has neither default value nor user provided value"
            raise Refused(400, 3, f"{before}Invalid input error: {cause}", cause)
    try:
        complete_arguments(pipeline, arguments)
    except TorchxKfpError as error:
        raise Refused(400, 3, f"{before}Invalid input error: {error}", str(error)) from None
