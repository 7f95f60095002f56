"""Constant text on its way to the application: the changes that engines would make, and escapes that prevent them.

Between the compiled pipeline and the application's ``argv``, a word passes through KFP, Argo and the kubelet. KFP fills
in ``{{$...}}`` and reads a word that starts with ``{"Concat"`` or ``{"IfPresent"`` as a placeholder. Argo substitutes
``{{...}}``, evaluates ``{{=...}}``, and quotes unprintable characters in a way that is not JSON. The kubelet turns
``$$`` into ``$``, expands ``$(NAME)`` and mangles a character after ``$`` that is not ASCII
(``torchx_kfp.semantics.rewriting``). In words that contain any of this, such characters are replaced by octal escapes
for ``printf %b``, a builtin of every ``sh``.
"""

from __future__ import annotations

import json
import re

#: The characters after a ``$`` that make the kubelet change it.
REWRITTEN_AFTER_DOLLAR = r"[$(\x80-\U0010ffff]"

_REWRITTEN = re.compile(r"\$" + REWRITTEN_AFTER_DOLLAR + r'|\{\{|^\s*\{\s*"(?:Concat|IfPresent)"')
#: Matches backslashes, and the first character of each pair that engines rewrite.
_ESCAPED = re.compile(r"\\|\$(?=" + REWRITTEN_AFTER_DOLLAR + r')|\{(?=\{|\s*"(?:Concat|IfPresent)")')
_OCTAL = re.compile(rb"\\0([0-7]{1,3})")
_KEPT_UNPRINTABLE = "\t\n\r"


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


def unescape(text: str) -> str:
    """Return the text that was escaped."""
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text.encode()).decode(errors="replace")


def plain_json(value: object) -> str:
    """Return JSON without spaces, and without text in its strings that an engine would rewrite."""
    text = json.dumps(value, separators=(",", ":"))
    # Outside strings, an opening brace is always followed by a quote or a closing brace.
    return text.replace("$", "\\u0024").replace("{{", "\\u007b\\u007b").replace("\x7f", "\\u007f")


def _is_plain(character: str) -> bool:
    # Go quotes the rest of the Basic Multilingual Plane as \\uXXXX, which is valid JSON.
    return character.isprintable() or character in _KEPT_UNPRINTABLE or "\x80" <= character <= "\uffff"


def _octal(character: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in character.encode())
