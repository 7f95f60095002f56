"""The words of a stage's command as text for KFP: with placeholders, escaped, or moved into the input ``stage``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchx_kfp.authoring.component_inputs import Inputs
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Text, check_word, is_constant
from torchx_kfp.contract.inputs import escape, find_rewritten

#: The most bytes of all values. Beyond that, a second container is smaller than a second copy of the text.
MOST = 1024
#: A value that moves: a number, a name, a path. Other text stays, and so do options, which many stages share.
_VALUE = re.compile(r"(?!--?[A-Za-z][\w-]*\Z)[\w@%+=:,./-]{1,256}", re.ASCII)


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
    for index, word in enumerate(words):
        if index == variables or not is_constant(word):
            continue
        text, start = str(word[0]), 0
        if index < variables:
            name = text.partition("=")[0]
            start = len(name) + 1
            # The pipeline sets variables that begin so, the same for its stages.
            if not is_shell_variable(name) or name.startswith("TORCHX_"):
                continue
        if _VALUE.fullmatch(text, start):
            yield index, (text[:start], text[start:])


def _whole(parts: Text, inputs: Inputs) -> tuple[str, str]:
    """Return a word that stays, escaped if an engine would change it, and its letter."""
    text = inputs.render(parts)
    escaped = is_constant(parts) and find_rewritten(text) is not None
    text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
    return text, "b" if escaped else "s"
