"""What a terminal may be given of text that others have written: names, values, errors, lines of logs.

Every text of this package reaches a terminal through ``clean``, at the places that write: ``cli.output`` for commands,
``local.output.Terminal`` for what happens in a run. Control characters move the cursor, set titles and clipboards;
marks of format turn the direction of writing, so that text reads as something else.
"""

from __future__ import annotations

import json
import re
import unicodedata

#: Stands for a character that is not shown.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
#: One that hides what follows it.
_CONCEALS = re.compile(r"[\[;]0*8[;m]")
#: Newlines and tabs, which are a matter of layout, and the joiners that many scripts and emoji need.
_KEPT = "\n\t\u200c\u200d"


def is_unsafe(character: str) -> bool:
    """Whether the character may do something else to a terminal than to be shown: controls, directions, line ends."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _KEPT


def clean(text: str, *, colours: bool = False) -> str:
    """The text with a sign in place of each character that is unsafe in a terminal; newlines and tabs stay.

    Args:
        text: may hold anything.
        colours: whether escape sequences stay that set colours, or bold and dim text.
    """
    if text.isprintable():
        return text
    if not colours:
        return "".join(REPLACEMENT if is_unsafe(character) else character for character in text)
    pieces = _COLOUR.split(text)
    # Every second one is a sequence.
    pieces[::2] = map(clean, pieces[::2])
    pieces[1::2] = ["" if _CONCEALS.search(piece) else piece for piece in pieces[1::2]]
    return "".join(pieces)


def clean_line(line: bytes) -> str:
    """The line as a terminal may show it: colours stay, what could do something else to the terminal does not."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    # A progress bar writes over its line: show what would be left of it.
    return clean(text.rsplit("\r", 1)[-1], colours=True)


def escape_json(text: str) -> str:
    """JSON with escapes for what is unsafe inside of its strings."""
    if text.isprintable():
        return text
    return "".join(json.dumps(character)[1:-1] if is_unsafe(character) else character for character in text)
