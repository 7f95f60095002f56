"""Errors of the API: ``google.rpc.Status``."""

from __future__ import annotations

from http import HTTPStatus
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


def no_experiment(identity: str) -> Refused:
    """Return the answer to a request for an experiment that does not exist."""
    cause = f"Experiment {identity} not found"
    return Refused(404, 5, f"Failed to get an experiment: ResourceNotFoundError: {cause}", cause)


def proxy_error(status: int) -> dict[str, Any]:
    """Return the answer with a status of something before KFP's API server."""
    return {"code": 2, "message": HTTPStatus(status).phrase}
