"""Errors of the API: ``google.rpc.Status``."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A request is answered with an error; ``code`` is gRPC's, and ``cause`` its innermost part.

    ``answer`` is a JSON object, or text.
    """

    def __init__(self, status: int, code: int, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.answer: Any = {"code": code, "message": message}
        if cause is not None:
            detail = {"@type": "type.googleapis.com/google.rpc.Status", "code": code, "message": cause}
            self.answer["details"] = [detail]


def no_run(run_id: str) -> Refused:
    """Return the answer to a request for a run that does not exist."""
    cause = f"Run {run_id} not found"
    return Refused(404, 5, f"Failed to get a run: Failed to fetch run {run_id}: ResourceNotFoundError: {cause}", cause)


def no_experiment(identity: str) -> Refused:
    """Return the answer to a request for an experiment that does not exist."""
    cause = f"Experiment {identity} not found"
    return Refused(404, 5, f"Failed to get an experiment: ResourceNotFoundError: {cause}", cause)


#: What a proxy answers in KFP's place, by status: gRPC's code and the message.
_PROXY = {
    401: (16, "Request header error: there is no user identity header."),
    403: (7, "User is not authorized"),
    404: (5, "Not Found"),
    429: (8, "Too many requests"),
    500: (13, "Internal Server Error"),
    503: (14, "upstream connect error or disconnect/reset before headers"),
}


def proxy_error(status: int) -> dict[str, Any]:
    """Return the answer with a status of something before KFP's API server."""
    code, message = _PROXY.get(status, (2, f"status {status}"))
    return {"code": code, "message": message}
