"""TorchX's macros, for a stage of one replica.

TorchX substitutes with ``string.Template``, which also turns ``$$`` into ``$``. Here the macros are replaced and
nothing else, so that every other text reaches the application as the AppDef has it. One exception: ``$${${rank0_env}``
becomes ``${TORCHX_RANK0_HOST``, the shell's expansion of the variable that a macro names, as ``dist.ddp`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What ``${rank0_env}`` names: the variable that holds the host of replica 0.
RANK0_HOST = "TORCHX_RANK0_HOST"

_MACRO = re.compile(r"(\$\$\{)?\$\{(img_root|base_img_root|app_id|replica_id|rank0_env)\}")


def macro_values(app_name: str) -> dict[str, str]:
    """Each macro's name (``torchx.specs.macros``) -> its value in a stage.

    ``app_id`` is the AppDef's name: a value that changed by run would defeat KFP's caching. An image has no root of
    its own in a container, as in TorchX's Kubernetes scheduler; ``base_img_root`` is deprecated there.
    """
    return {
        "img_root": "",
        "base_img_root": "",
        "app_id": app_name,
        "replica_id": "0",
        "rank0_env": RANK0_HOST,
    }


def substitute(text: str, values: Mapping[str, str]) -> str:
    """The text with its macros replaced, in one pass: a value that looks like a macro stays."""
    return _MACRO.sub(lambda found: ("${" if found[1] else "") + values[found[2]], text)
