"""Facts about several roles that an engine needs."""

from __future__ import annotations

from collections.abc import Sequence

from torchx_kfp.engines.engine import Engine, Role
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean


def check_success(engine: Engine, names: Sequence[str], roles: Sequence[Role]) -> list[str]:
    """Return the Kubernetes names of the roles whose success is the stage's; none if it is that of all.

    Args:
        engine: the engine, for errors.
        names: names of roles in the AppDef.
        roles: the roles.

    Raises:
        AppDefError: a name is not that of a role.
    """
    known = {role.given: role.name for role in roles}
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise AppDefError(
            f"{type(engine).__name__} has succeeds_with={names!r}. Give the names of roles, such as ['trainer']."
        )
    given = list(dict.fromkeys(given))
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise AppDefError(
                f"{type(engine).__name__} has succeeds_with={names!r}, but there is no role {name!r}.{hint} The "
                f"AppDef's roles: {', '.join(map(repr, known))}."
            )
    return [known[name] for name in given] if len(given) < len(known) else []


def shared_restarts(engine: Engine, roles: Sequence[Role]) -> int:
    """Return how often the engine starts all roles again.

    Raises:
        AppDefError: the roles disagree.
    """
    counts = {role.given: role.restarts if role.restarts_all else 0 for role in roles}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r}: {count}" for name, count in counts.items())
        raise AppDefError(
            f"The roles differ in how often all of them start again ({told}), "
            f"but {type(engine).__name__} counts that once. Give all roles the same max_retries and retry_policy."
        )
    return next(iter(counts.values()))
