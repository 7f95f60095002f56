"""The words of a stage's command as text for KFP: with placeholders, escaped, or moved into the input ``stage``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchx_kfp.authoring.component_inputs import Inputs
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Text, check_word, is_constant
from torchx_kfp.contract.inputs import encode_value, escape, find_rewritten

#: The most bytes of one value, and of all. Beyond that, a second container is smaller than a second copy of the text.
LONGEST, MOST = 256, 1024
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


def encode(
    variables: Sequence[Text], starter: Sequence[str], command: Sequence[Text], inputs: Inputs, *, move: bool
) -> tuple[list[str], str, list[str]]:
    """Return words as text for KFP, their mask, and the values that move from the container into the input ``stage``.

    KFP's backend stores a container once for all stages with the same text. The mask has a letter for each word: ``s``,
    ``b`` if it is escaped, ``v`` if its value moves (``contract.command``).

    Args:
        variables: ``env`` and ``NAME=value``.
        starter: the words of programs between these and the application, as text for KFP.
        command: the application and its arguments.
        inputs: get the references of the words.
        move: whether values may move, except those that the stages of a pipeline share.
    """
    words = [*variables, *command]
    moved = dict(_moved(words, len(variables))) if move else {}
    if sum(len(value) for _, value in moved.values()) > MOST:
        moved = {}
    coded = [(moved[index][0], "v") if index in moved else _whole(parts, inputs) for index, parts in enumerate(words)]
    coded[len(variables) : len(variables)] = [(word, "s") for word in starter]
    mask = "".join(kind for _, kind in coded).rstrip("s")
    return [text for text, _ in coded], mask, [value for _, value in moved.values()]


def _moved(words: Sequence[Text], variables: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the indices of words whose values move: what stays of them, and the values."""
    texts = [str(word[0]) if is_constant(word) else "" for word in words]
    for index, text in enumerate(texts):
        name, equals, value = text.partition("=") if index < variables else ("", "", text)
        if index < variables:
            # The pipeline sets variables that begin so, the same for its stages.
            moves = is_shell_variable(name) and not name.startswith("TORCHX_")
        else:
            moves = index > variables and not _OPTION.fullmatch(text) and not _is_program(texts, index)
        if moves and 0 < len(value) <= LONGEST and value.isascii() and value.isprintable():
            yield index, (name + equals, encode_value(value))


def _is_program(texts: Sequence[str], index: int) -> bool:
    """Return whether a word is a program for Python that finds what differs in its arguments."""
    return _PYTHON.fullmatch(texts[index - 2]) is not None and texts[index - 1] == "-c" and "argv" in texts[index]


def _whole(parts: Text, inputs: Inputs) -> tuple[str, str]:
    """Return a word that stays, escaped if an engine would change it, and its letter."""
    text = inputs.render(parts)
    escaped = is_constant(parts) and find_rewritten(text) is not None
    text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
    return text, "b" if escaped else "s"
