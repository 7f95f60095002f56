"""Constant text on its way to the application: the changes that engines would make, and escapes that prevent them.

Between the compiled pipeline and the application's ``argv``, a word passes through KFP, Argo and the kubelet. KFP fills
in ``{{$...}}`` and reads a word that starts with ``{"Concat"`` or ``{"IfPresent"`` as a placeholder. Argo substitutes
``{{...}}``, evaluates ``{{=...}}``, and quotes unprintable characters in a way that is not JSON. The kubelet turns
``$$`` into ``$``, expands ``$(NAME)`` and mangles a character after ``$`` that is not ASCII
(``torchx_kfp.semantics.rewriting``). In words that contain any of this, such characters are replaced by octal escapes
for ``printf %b``, a builtin of every ``sh``.
"""

from __future__ import annotations

import re

from torchx_kfp.errors import AppDefError, ChannelError
from torchx_kfp.semantics.rewriting import REWRITTEN_AFTER_DOLLAR

#: The bytes that Linux accepts in one argument (MAX_ARG_STRLEN is 128 KiB with the final NUL).
LONGEST_WORD = 128 * 1024 - 1

_REWRITTEN = re.compile(r"\$" + REWRITTEN_AFTER_DOLLAR + r'|\{\{|^\s*\{\s*"(?:Concat|IfPresent)"')
#: Matches backslashes, and the first character of each pair that engines rewrite.
_ESCAPED = re.compile(r"\\|\$(?=" + REWRITTEN_AFTER_DOLLAR + r')|\{(?=\{|\s*"(?:Concat|IfPresent)")')
_KEPT_UNPRINTABLE = "\t\n\r"


def _is_plain(character: str) -> bool:
    # Go quotes the rest of the Basic Multilingual Plane as \\uXXXX, which is valid JSON.
    return character.isprintable() or character in _KEPT_UNPRINTABLE or "\x80" <= character <= "\uffff"


def find_rewritten(text: str) -> str | None:
    """Return the first piece of the text that an engine would change; None if there is none."""
    found = _REWRITTEN.search(text)
    if found:
        return found.group()
    if text.isprintable():
        return None
    return next((character for character in text if not _is_plain(character)), None)


def escape(text: str) -> str:
    """Escape everything that engines would change, for ``printf %b``."""
    text = _ESCAPED.sub(lambda found: _octal(found.group()), text)
    return "".join(character if _is_plain(character) else _octal(character) for character in text)


def _octal(character: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in character.encode())


def check_word(text: str, where: str) -> str:
    """Return the text if a process can receive it.

    Raises:
        AppDefError: it contains NUL or lone surrogates, or is longer than Linux accepts.
    """
    if "\0" in text:
        raise AppDefError(f"{where} contains a NUL character, which an argument cannot: {text!r}. Remove it.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise AppDefError(
            f"{where} is not valid Unicode (a lone surrogate): {text!r}. Decode bytes as UTF-8 before they "
            "go into an AppDef, or pass them base64-encoded."
        ) from None
    if size > LONGEST_WORD:
        raise AppDefError(
            f"{where} is {size} bytes long; Linux accepts at most {LONGEST_WORD} bytes in one argument. "
            "Put the text into a file in the image or on the tracker's storage, and pass its path."
        )
    return text


def check_beside_channel(text: str, where: str, *, before: bool) -> str:
    """Return the text if it may be in one string with a pipeline channel, where escapes are impossible.

    Args:
        text: constant text.
        where: the string's place in the AppDef, for errors.
        before: whether a channel follows. After another brace, KFP's placeholder would look like one of Argo's.

    Raises:
        ChannelError: an engine would change the text.
    """
    found = find_rewritten(text + "{" if before else text)
    if found:
        raise ChannelError(
            f"{where} contains {found!r} in one string with a pipeline channel: {text!r}. Argo or the kubelet would "
            "change it, and text next to a channel cannot be escaped. Split it: pass the text and the channel as two "
            "arguments or variables, and let the application join them."
        )
    return text
