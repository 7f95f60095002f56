"""The application of a stage: the entrypoint, arguments and variables of its role, with macros applied.

TorchX substitutes macros with ``string.Template``, which also turns ``$$`` into ``$``. Here, only macros are replaced,
so that all other text reaches the application as it is in the AppDef. There is one exception: ``$${${rank0_env}``,
which ``dist.ddp`` writes, becomes ``${TORCHX_RANK0_HOST``, the shell's expansion of the variable that the macro names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx import specs
from torchx.schedulers import kubernetes_scheduler

from torchx_kfp.adapter.values import shell
from torchx_kfp.adapter.values.channels import check_parts, parse, parse_checked
from torchx_kfp.adapter.values.escapes import check_word
from torchx_kfp.adapter.values.references import Parts, Reference, parameter, parameter_text
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError, ChannelError

#: The index of a replica, which only the replica knows. No input of a component can have this name.
REPLICA = parameter("0replica_id", "STRING")

_MACRO = re.compile(r"(\$\$\{)?\$\{(img_root|base_img_root|app_id|replica_id|rank0_env)\}")
#: How TorchX's Kubernetes scheduler marks a variable that names a field of the pod; None in versions without them.
_FIELD_PATH: str | None = getattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH", None)


@dataclass(frozen=True)
class Application:
    """The application's command line and its variables; ``field_paths`` are variables that name fields of the pod."""

    entrypoint: Parts
    args: Sequence[Parts]
    env: Mapping[str, Parts]
    field_paths: Mapping[str, str]

    @property
    def variables(self) -> set[str]:
        """The names of all variables that it sets."""
        return {*self.env, *self.field_paths}


def read_application(
    app_name: str, role: specs.Role, where: str, taken: Collection[str], *, replicas: bool = False
) -> Application:
    """Read the role's entrypoint, arguments and variables.

    Args:
        app_name: the AppDef's name, for ``${app_id}``.
        role: the AppDef's role.
        where: the role, for errors.
        taken: variables that something else sets.
        replicas: whether the role may have several replicas: ``${replica_id}`` becomes ``REPLICA``, next to which text
            is not checked, and an engine sets the host of replica 0.

    Raises:
        AppDefError: a value is not text, or a variable has a name that ``env`` cannot set.
        ChannelError: a channel is used where its value cannot be filled in.
    """
    values = _macro_values(app_name, parameter_text(REPLICA) if replicas else "0")
    texts = [value for value in (*role.args, *role.env.values()) if isinstance(value, str)]
    variables: dict[str, Any] = dict(role.env)
    if not replicas and any("${rank0_env}" in text for text in texts):
        variables.setdefault(protocol.RANK0_HOST, "localhost")

    def check(parts: Parts, place: str) -> Parts:
        return parts if REPLICA in parts else check_parts(parts, place)

    def read(value: object, place: str) -> Parts:
        return parse(_substitute(value, values) if isinstance(value, str) else value, place)

    env: dict[str, Parts] = {}
    field_paths: dict[str, str] = {}
    for key, value in variables.items():
        _check_variable(key, where)
        place = f"env[{key!r}] of {where}"
        parts = check(read(value, place), place)
        if _FIELD_PATH and isinstance(parts[0], str) and parts[0].startswith(_FIELD_PATH):
            if len(parts) > 1:
                raise ChannelError(
                    f"{place} names a field of the pod with a pipeline channel inside. The field must be known when "
                    "the pipeline is compiled."
                )
            field_paths[key] = parts[0].removeprefix(_FIELD_PATH)
        else:
            env[key] = parts
    # TorchX applies macros only to args and env.
    entrypoint = parse_checked(role.entrypoint, f"entrypoint of {where}")
    args = [read(value, f"args[{index}] of {where}") for index, value in enumerate(role.args)]
    # To a shell, the index of a replica is a number in the text of its program.
    number = _unused_number(part for parts in (*args, *env.values()) for part in parts if isinstance(part, str))
    shown, lifted = shell.lift_arguments(
        entrypoint,
        [_with_number(parts, number) for parts in args],
        {name: _with_number(parts, number) for name, parts in env.items()},
        where,
        taken,
    )
    args = [_with_replica(parts, number) for parts in shown]
    env.update({variable: (reference,) for variable, reference in lifted.items()})
    args = [check(parts, f"args[{index}] of {where}") for index, parts in enumerate(args)]
    return Application(entrypoint, args, env, field_paths)


def _unused_number(texts: Iterable[str]) -> str:
    """Return a number that the texts do not contain, and no end of which is its beginning."""
    together = "\0".join(texts)
    return next(number for zeros in itertools.count(9) if (number := "1" + zeros * "0") not in together)


def _with_number(parts: Parts, number: str) -> Parts:
    """Return the parts with a number in place of the index of a replica."""
    joined: list[str | Reference] = []
    for part in parts:
        text = number if part == REPLICA else part
        if joined and isinstance(text, str) and isinstance(joined[-1], str):
            joined[-1] += text
        else:
            joined.append(text)
    return tuple(joined)


def _with_replica(parts: Parts, number: str) -> Parts:
    """Return the parts with the index of a replica in place of a number."""
    found: list[str | Reference] = []
    for part in parts:
        if not isinstance(part, str) or number not in part:
            found.append(part)
            continue
        first, *others = part.split(number)
        found += [first] if first else []
        for other in others:
            found += [REPLICA, other] if other else [REPLICA]
    return tuple(found)


def _macro_values(app_name: str, replica_id: str) -> dict[str, str]:
    """Return the value of each macro (``torchx.specs.macros``).

    ``app_id`` is the AppDef's name, because a value that changed with each run would defeat KFP's caching. In a
    container, ``img_root`` is empty, as in TorchX's Kubernetes scheduler, where ``base_img_root`` is deprecated.
    """
    return {
        "img_root": "",
        "base_img_root": "",
        "app_id": app_name,
        "replica_id": replica_id,
        "rank0_env": protocol.RANK0_HOST,
    }


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace the macros in the text, in one pass: a value that looks like a macro stays as it is."""
    return _MACRO.sub(lambda found: ("${" if found[1] else "") + values[found[2]], text)


def _check_variable(name: str, where: str) -> None:
    if not name or "=" in name or name.startswith("-"):
        raise AppDefError(f"env of {where} has the name {name!r}, which a variable cannot have.")
    check_word(name, f"A name in env of {where}")
