"""What the script of a tracked stage makes of its words, without running it (``torchx_kfp.adapter.stage.command``)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OCTAL = re.compile(rb"\\0([0-7]{1,3})")


def fill_in(words: Sequence[str]) -> list[str]:
    """The words of a command, with the values that travel in the input ``stage`` where the script puts them.

    Args:
        words: a stage's command, its placeholders filled in; another one's comes back as it is.
    """
    filled = list(words)
    start = words.index("-ec") if "-ec" in words else len(words)
    script, name = (*words[start + 1 : start + 3], "", "")[:2]
    if not name.startswith("torchx-kfp-") or "_v=$2" not in script:
        return filled
    filled[start + 4], *values = words[start + 4].split(" ")
    at = start + 5
    if "_j=" in script:
        # Constant text of the stages that are read and run ids in turn; an empty name is the next value.
        while True:
            del values[: words[at].count('""')]
            if words[at].endswith("}"):
                break
            at += 2
        at += 1
    at += 2 if 'printf %b "$2"' in script else 0
    if "_m=$1" not in script:
        return filled
    for place, kind in enumerate(words[at], at + 1):
        if kind == "v":
            filled[place] += values.pop(0)
        if kind in "bv":
            filled[place] = _decode(filled[place])
    return filled


def _decode(text: str) -> str:
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text.encode()).decode(errors="replace")
