"""Recurring runs of the API, which start runs at intervals: those with cron expressions start none.

Answers were recorded, most refusals were not: they follow the API's description, and the source of KFP:
``server/api_converter.go`` (``toModelJob``), ``resource/resource_manager.go`` (``CreateJob``, ``DeleteJob``,
``ReportWorkflowResource``), ``template/v2_template.go``.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.host.states import seconds
from torchx_kfp_dev_host.answers import NAMESPACE, shown_time
from torchx_kfp_dev_host.argo import LETTERS, fnv1a32
from torchx_kfp_dev_host.errors import Refused

_BEFORE = "Failed to create a recurring run: Invalid input error: "


@dataclass
class RecurringRun:
    """A recurring run: the request that made it, and the runs that it has started."""

    body: Mapping[str, Any]
    experiment: str
    created: float
    identity: str = field(default_factory=lambda: str(uuid.uuid4()))
    is_enabled: bool = True
    #: How many runs it has started, and when the last one, or when it was enabled, in seconds since the epoch.
    number: int = 0
    last: float = 0.0
    #: The name of its object in Kubernetes.
    object_name: str = ""
    service_account: str = ""

    @classmethod
    def of(cls, body: Mapping[str, Any], experiment: str, now: float) -> RecurringRun:
        """Check a request and return the recurring run."""
        if not body.get("display_name"):
            raise Refused(400, 3, _BEFORE + "Recurring run name is empty. Please specify a valid name")
        trigger = body.get("trigger", {})
        interval = trigger.get("periodic_schedule", {}).get("interval_second", 0)
        try:
            most, _ = (int(text) for text in (body.get("max_concurrency", 0), interval))
        except (ValueError, TypeError) as error:
            raise Refused(400, 3, f"proto: syntax error: {error}") from None
        if not 1 <= most <= 10:
            raise Refused(400, 3, f"{_BEFORE}Max concurrency of a recurring run must be at least 1 and at most 10")
        expression = trigger.get("cron_schedule", {}).get("cron")
        if expression is not None and len(expression.split()) != 6 and not expression.startswith("@"):
            # A real host takes the first of five fields for the seconds.
            raise Refused(400, 3, f"{_BEFORE}Schedule cron is not a supported format: {expression!r}")
        prefix = re.sub("[^a-z0-9-]+", "", body["display_name"].lower())[:25] or "job-"
        return cls(
            body,
            experiment,
            now,
            is_enabled=body.get("mode") == "ENABLE",
            object_name=prefix + "".join(secrets.choice(LETTERS) for _ in range(5)),
            service_account=body.get("service_account") or "pipeline-runner",
        )

    def enable(self, now: float) -> None:
        """Let it start runs. The first one follows after an interval."""
        self.is_enabled, self.last = True, now

    def is_due(self, now: float, active: int) -> bool:
        """Tell whether it starts a run now; ``active`` is how many of its runs have not ended."""
        schedule = self.body.get("trigger", {}).get("periodic_schedule", {})
        if not self.is_enabled or not schedule or active >= int(self.body["max_concurrency"]):
            return False
        begin, end = seconds(schedule.get("start_time")), seconds(schedule.get("end_time"))
        first = max(self.last or self.created, (begin or 0.0) - int(schedule["interval_second"]))
        return first + int(schedule["interval_second"]) <= now and (end is None or now <= end)

    @property
    def workflow(self) -> str:
        """The name of the workflow of the last run, and of that run."""
        name = f"{self.object_name}-{self.number}"
        return f"{name}-{fnv1a32(name)}"

    def describe(self) -> dict[str, Any]:
        """Return it in v2beta1."""
        kept = ("display_name", "description", "pipeline_spec", "runtime_config")
        answer = {
            "recurring_run_id": self.identity,
            **{name: self.body.get(name) for name in kept},
            "service_account": self.service_account,
            "max_concurrency": self.body["max_concurrency"],
            "trigger": self.body["trigger"],
            "mode": "ENABLE" if self.is_enabled else "DISABLE",
            "created_at": shown_time(self.created),
            "updated_at": shown_time(self.created),
            "status": "ENABLED" if self.is_enabled else "DISABLED",
            "no_catchup": self.body.get("no_catchup", False),
            "namespace": NAMESPACE,
            "experiment_id": self.experiment,
        }
        return {key: value for key, value in answer.items() if value not in (None, "", False)}
