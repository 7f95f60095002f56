"""The inputs of a stage's component, and constant text on its way to the application.

The input ``stage`` carries the stage's name and values.

Between the compiled pipeline and the application's ``argv``, a word passes through KFP, Argo and the kubelet. KFP fills
in ``{{$...}}``, and reads a word that starts with ``{"Concat"`` or ``{"IfPresent"`` as a placeholder. Argo substitutes
``{{...}}``, evaluates ``{{=...}}``, and quotes unprintable characters in a way that is not JSON. The kubelet turns
``$$`` into ``$``, expands ``$(NAME)``, and mangles a non-ASCII character after ``$``. In words that contain any of
this, octal escapes for ``printf %b``, a builtin of every ``sh``, replace the characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from torchx_kfp.contract import protocol

#: The name of the output with a tracked stage's execution id.
RUN_ID = "run_id"
#: The name of the input for a parent's execution id without an alias.
READS = "reads"
#: The name of the input for the stage's name and values.
STAGE = "stage"
#: The name of the input through which KFP 2.15 and newer pass the task's settings to a distributed stage.
TASK_CONFIG = "task_config"
#: The prefix of an input that KFP passes into a group of tasks only together with the loop's item.
INNER = "inner_"
#: The suffixes of inputs' names, by type in the IR.
SUFFIXES = {
    "NUMBER_INTEGER": "_int",
    "NUMBER_DOUBLE": "_float",
    "BOOLEAN": "_bool",
    "LIST": "_list",
    "STRUCT": "_dict",
}
#: Matches the end of an input's name, after the name of its channel.
ADDED = rf"({'|'.join(SUFFIXES.values())})?(_\d+)?"
#: The separator of the values of the input ``stage``.
SEPARATOR = "|"


def is_stage_input(name: str) -> bool:
    """Check whether an input may be the one with the stage's name and values. A user's input may have the same name."""
    return re.fullmatch(rf"{STAGE}(_\d+)?", name) is not None


def identifier(name: str) -> str:
    """Replace each run of characters other than ASCII letters, digits and ``_`` with one ``_``."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")


def parameter_placeholder(name: str) -> str:
    """Return the placeholder for an input's value."""
    return f"{{{{$.inputs.parameters['{name}']}}}}"


def output_placeholder(name: str) -> str:
    """Return the placeholder for the path of an output parameter's file."""
    return f"{{{{$.outputs.parameters['{name}'].output_file}}}}"


def artifact_placeholder(name: str) -> str:
    """Return the placeholder for the local path of an output artifact."""
    return f"{{{{$.outputs.artifacts['{name}'].path}}}}"


def stage_value(stage: str, aliases: Iterable[str], values: Iterable[str]) -> str:
    """Return the value of the input ``stage``: the stage's name, the aliases of its parents, and values."""
    encoded = (protocol.encode_alias(alias).replace(SEPARATOR, r"\u007c") for alias in aliases)
    return SEPARATOR.join([stage, *encoded, *values])


# Escapes

#: Matches the characters after which the kubelet changes a ``$`` before them.
REWRITTEN_AFTER_DOLLAR = r"[$(\x80-\U0010ffff]"

_REWRITTEN = re.compile(r"\$" + REWRITTEN_AFTER_DOLLAR + r'|\{\{|^\s*\{\s*"(?:Concat|IfPresent)"')
#: Matches backslashes, and the first character of each pair that engines rewrite.
_ESCAPED = re.compile(r"\\|\$(?=" + REWRITTEN_AFTER_DOLLAR + r')|\{(?=\{|\s*"(?:Concat|IfPresent)")')
_LARGE = re.compile("[\U00010000-\U0010ffff]")
_OCTAL = re.compile(rb"\\0([0-7]{1,3})")
_KEPT_UNPRINTABLE = "\t\n\r"


def find_rewritten(text: str) -> str | None:
    """Return the first text that an engine would change, or None."""
    match = _REWRITTEN.search(text)
    if match:
        return match.group()
    if text.isprintable():
        return None
    return next((character for character in text if not _is_plain(character)), None)


def escape(text: str) -> str:
    """Escape all text that engines would change, for ``printf %b``."""
    text = _ESCAPED.sub(lambda found: _octal(found.group()), text)
    return "".join(character if _is_plain(character) else _octal(character) for character in text)


def unescape(text: str) -> str:
    """Reverse ``escape``."""
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text.encode()).decode(errors="replace")


def plain_json(value: object) -> str:
    """Return JSON without spaces, and without text in strings that an engine would rewrite."""
    text = json.dumps(value, separators=(",", ":"))
    # Outside strings, an opening brace is always followed by a quote or a closing brace.
    return text.replace("$", "\\u0024").replace("{{", "\\u007b\\u007b").replace("\x7f", "\\u007f")


def large_character(text: str) -> str:
    """Return the first character above U+FFFF for a message, or an empty string."""
    match = _LARGE.search(text)
    return f"{match.group()!r} (U+{ord(match.group()):X})" if match else ""


def _is_plain(character: str) -> bool:
    # Go quotes the rest of the Basic Multilingual Plane as \\uXXXX, which is valid JSON.
    return character.isprintable() or character in _KEPT_UNPRINTABLE or "\x80" <= character <= "\uffff"


def _octal(character: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in character.encode())
