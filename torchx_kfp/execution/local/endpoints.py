"""The address of the S3 server: on this machine, the user's counts in place of that in the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchx_kfp.contract.command import ASIDE
from torchx_kfp.execution.pipeline.endpoints import is_of_this_machine, s3_endpoints


def own_endpoints(environ: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
    """Return the variables of an environment with which stages find S3. If there are any, the stages' own do not count.

    For a container, an address such as ``localhost`` would be its own.
    """
    found = s3_endpoints(environ.items())
    return {} if in_container and any(map(is_of_this_machine, found.values())) else found


def described(variables: Iterable[tuple[str, str]], environ: Mapping[str, str], *, in_container: bool) -> str:
    """Describe which address is ignored, the stage's or this machine's; empty if they do not differ.

    Args:
        variables: the variables that the stage sets.
        environ: those of this machine.
        in_container: whether the stage runs in a container.
    """
    others = s3_endpoints((name.removeprefix(ASIDE), value) for name, value in variables)
    own = s3_endpoints(environ.items())
    if not own or not others or own == others:
        return ""
    if own_endpoints(environ, in_container=in_container):
        return f"{_listed(others)} (your own {', '.join(own)} is used)"
    return f"your own {_listed(own)} (in a container, it would mean the container itself: {_listed(others)} is used)"


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
