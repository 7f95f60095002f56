"""The words of a stage's command as text for KFP: with placeholders, escaped, or moved into the input ``stage``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from torchx_kfp.authoring.component_inputs import Inputs
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Text, check_word, is_constant
from torchx_kfp.contract.command import Word
from torchx_kfp.contract.inputs import encode_value, escape, find_rewritten

#: The most bytes of one value, and of all. Beyond that, a second container is smaller than a second copy of the text.
LONGEST, MOST = 256, 1024
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


def encode(words: Sequence[Text], variables: int, inputs: Inputs, shared: Collection[str] | None) -> list[Word]:
    """Return words as text for KFP, with values that move from the container into the input ``stage``.

    KFP's backend stores a container once for all stages with the same text.

    Args:
        words: ``env`` and ``NAME=value``, then the program and its arguments.
        variables: the number of those before the program.
        inputs: get the references of the words.
        shared: variables that stay in the container, because the stages of a pipeline share them. With None, every
            word stays.
    """
    moved = {} if shared is None else dict(_moved(words, variables, shared))
    if sum(len(word.value) for word in moved.values()) > MOST:
        moved = {}
    return [moved.get(index) or _whole(parts, inputs) for index, parts in enumerate(words)]


def _moved(words: Sequence[Text], variables: int, shared: Collection[str]) -> Iterator[tuple[int, Word]]:
    """Yield the indices of words whose values move, and what stays of them."""
    texts = [str(word[0]) if is_constant(word) else "" for word in words]
    for index, text in enumerate(texts):
        name, equals, value = text.partition("=") if index < variables else ("", "", text)
        if index < variables:
            moves = name not in shared and is_shell_variable(name)
        else:
            moves = index > variables and not _OPTION.fullmatch(text) and not _is_program(texts, index)
        if moves and 0 < len(value) <= LONGEST and value.isascii() and value.isprintable():
            yield index, Word(name + equals, "v", encode_value(value))


def _is_program(texts: Sequence[str], index: int) -> bool:
    """Return whether a word is a program for Python that finds what differs in its arguments."""
    return _PYTHON.fullmatch(texts[index - 2]) is not None and texts[index - 1] == "-c" and "argv" in texts[index]


def _whole(parts: Text, inputs: Inputs) -> Word:
    """Return a word that stays, escaped if an engine would change it."""
    text = inputs.render(parts)
    escaped = is_constant(parts) and find_rewritten(text) is not None
    text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
    return Word(text, "b" if escaped else "s")
