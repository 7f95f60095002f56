"""The facts in a message, whatever its wording: names, values, and the way out."""

from __future__ import annotations

import re
from typing import Any


def keep(text: Any) -> Any:
    """Return text of an AppDef that arrives as this: TorchX's macros turn ``$$`` into ``$``."""
    return text.replace("$$", "$$$$") if type(text) is str else text


def says(*facts: object) -> str:
    """Return a pattern for ``match=`` that finds a message with all of these facts, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(fact))})" for fact in facts)
