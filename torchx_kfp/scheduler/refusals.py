"""Errors of torchx-kfp as TorchX's command line shows them."""

from __future__ import annotations

from torchx.specs.finder import ComponentValidationException

from torchx_kfp.errors import TorchxKfpError


def as_validation_error(error: TorchxKfpError) -> Exception:
    """Return the error as one that ``torchx run`` shows without a traceback. It still is one of its own class."""
    kind = type(error)
    refused = type(kind.__name__, (kind, ComponentValidationException), {})
    made: Exception = refused(str(error))
    return made
