"""Shell programs in an AppDef's arguments, such as the one that ``dist.ddp`` builds for ``bash -c``.

KFP fills a channel into a word as text, and in a program that text would be code: whoever sets a parameter could end
the quotes around it. So a channel in a program becomes a variable of the environment, and the program expands it,
quoted as its place asks for: the value is one word there, whatever it holds. No value of a channel is ever part of a
program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx_kfp.adapter.names import input_name
from torchx_kfp.adapter.references import Parts, Reference
from torchx_kfp.errors import ChannelError

_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")

#: How a variable is expanded in each kind of place: quotes that are open are closed around it.
_EXPANSIONS = {
    "plain": '"${{{}}}"',
    "double": "${{{}}}",
    "single": "'\"${{{}}}\"'",
    "ansi": "'\"${{{}}}\"$'",
}
#: What begins or ends a kind of place, from each of them.
_TOKENS = {
    "plain": re.compile(r"\\.|\$'|\$\(\(|\$\(|['\"`()]|(?:^|(?<=[\s;&|(]))#[^\n]*|(?<!<)<<(?!<)", re.DOTALL),
    "double": re.compile(r"\\.|\$\(\(|\$\(|[\"`]", re.DOTALL),
    "single": re.compile("'"),
    "ansi": re.compile(r"\\.|'", re.DOTALL),
}


def find_program(entrypoint: Parts, args: Sequence[Parts]) -> int | None:
    """The index of the argument that a shell takes for its program (``sh -c PROGRAM``); None where there is none."""
    words = [parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None for parts in (entrypoint, *args)]
    start = 1
    if words[0] and words[0].rpartition("/")[2] == "busybox":
        words, start = words[1:], 2
    if not words or not words[0] or words[0].rpartition("/")[2] not in _SHELLS:
        return None
    takes_program = takes_value = False
    for index, word in enumerate(words[1:], start - 1):
        if takes_value:
            takes_value = False
        elif word is not None and word[:1] in ("-", "+") and word not in ("-", "--"):
            takes_program |= not word.startswith("--") and "c" in word
            takes_value = word[-1:] in ("o", "O") and not word.startswith("--")
        elif word not in ("-", "--"):
            return index if takes_program else None
    return None


def lift_channels(program: Parts, where: str) -> tuple[str, dict[str, Reference]]:
    """The program with expansions in place of its channels, and the variables that it expands.

    Args:
        program: text with channels.
        where: its place in the AppDef, for errors.

    Raises:
        ChannelError: a channel in a place where a shell has no quotes for it.
    """
    variables: dict[Reference, str] = {}
    text = ""
    places = ["plain"]
    for part in program:
        if isinstance(part, str):
            text += part
            _follow(places, part)
            continue
        unquotable = next((place for place in places if place not in _EXPANSIONS), None)
        if unquotable:
            raise ChannelError(
                f"{where} has the pipeline channel {part.name!r} in {unquotable} of a shell program, where its value "
                "could not be quoted. Put it into a variable first, VALUE=..., and use that there."
            )
        if part not in variables:
            variables[part] = input_name(f"TORCHX_KFP_{part.name.upper()}", variables.values())
        text += _EXPANSIONS[places[-1]].format(variables[part])
    return text, {name: reference for reference, name in variables.items()}


def _follow(places: list[str], text: str) -> None:
    """Follow the shell's quotes through a piece of the program; the innermost place comes last."""
    position = 0
    while True:
        place = places[-1]
        pattern = _TOKENS.get(place, _TOKENS["plain"])
        found = pattern.search(text, position)
        if found is None or place == "a here-document":
            return
        position = found.end()
        token = found.group()
        if token.startswith(("\\", "#")):
            continue
        if token == "<<":
            places[:] = ["a here-document"]
        elif token == "$((":
            places.append("an arithmetic expansion")
        elif token in ("$(", "("):
            places.append(place if token == "(" and place not in _EXPANSIONS else "plain")
        elif token == ")":
            if len(places) > 1:
                places.pop()
                if place == "an arithmetic expansion" and text.startswith(")", position):
                    position += 1
        elif token == "`":
            places.pop() if place == "backquotes" else places.append("backquotes")
        elif token == "$'":
            places.append("ansi")
        elif token == "'":
            places.pop() if place in ("single", "ansi") else places.append("single")
        else:
            places.pop() if place == "double" else places.append("double")
