"""The words of a stage's command as text for KFP: with placeholders, escaped, or moved into the input ``stage``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Reference, Text, check_word, is_constant
from torchx_kfp.contract.command import Word
from torchx_kfp.contract.inputs import encode_value, escape, find_rewritten, parameter_placeholder

#: The most bytes of one value, and of all. Beyond that, a second container is smaller than a second copy of the text.
LONGEST, MOST = 256, 1024
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


def render(parts: Text, inputs: Mapping[Reference, str]) -> str:
    """Return the parts as text for KFP, in which each reference is the placeholder for its input."""
    return "".join(part if isinstance(part, str) else parameter_placeholder(inputs[part]) for part in parts)


def split_constants(words: Sequence[Text], variables: int, shared: Collection[str]) -> list[tuple[str, str] | None]:
    """Split words into what stays in the container and what moves into the input ``stage``; None for whole ones.

    KFP's backend stores a container once for all stages with the same text.

    Args:
        words: ``env`` and ``NAME=value``, then the program and its arguments.
        variables: the number of those before the program.
        shared: variables that stay in the container, because the stages of a pipeline share them.
    """
    texts = [str(word[0]) if is_constant(word) else "" for word in words]
    split: list[tuple[str, str] | None] = [None] * len(texts)
    for index, text in enumerate(texts):
        name, equals, value = text.partition("=") if index < variables else ("", "", text)
        if index < variables:
            moves = name not in shared and is_shell_variable(name)
        else:
            moves = index > variables and not _OPTION.fullmatch(text) and not _is_program(texts, index)
        if moves and 0 < len(value) <= LONGEST and value.isascii() and value.isprintable():
            split[index] = (name + equals, value)
    all_values = (encode_value(found[1]) for found in split if found)
    return split if sum(map(len, all_values)) <= MOST else [None] * len(texts)


def _is_program(texts: Sequence[str], index: int) -> bool:
    """Return whether a word is a program for Python that finds what differs in its arguments."""
    return _PYTHON.fullmatch(texts[index - 2]) is not None and texts[index - 1] == "-c" and "argv" in texts[index]


def encode_word(parts: Text, inputs: Mapping[Reference, str], split: tuple[str, str] | None = None) -> Word:
    """Return a word as text for KFP: what stays of it, or all of it, escaped if an engine would change it."""
    if split:
        return Word(split[0], "v")
    text = render(parts, inputs)
    escaped = is_constant(parts) and find_rewritten(text) is not None
    text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
    return Word(text, "b" if escaped else "s")
