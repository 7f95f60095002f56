"""The inputs of a stage's component, and constant text on its way to the application.

The input ``stage`` carries the stage's name and values.

Between the compiled pipeline and the application's ``argv``, a word passes through KFP, Argo and the kubelet. KFP fills
in ``{{$...}}`` and reads a word that starts with ``{"Concat"`` or ``{"IfPresent"`` as a placeholder. Argo substitutes
``{{...}}``, evaluates ``{{=...}}``, and quotes unprintable characters in a way that is not JSON. The kubelet turns
``$$`` into ``$``, expands ``$(NAME)`` and mangles a character after ``$`` that is not ASCII. In words that contain any
of this, such characters are replaced by octal escapes for ``printf %b``, a builtin of every ``sh``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from torchx_kfp.contract import protocol

#: The output with a tracked stage's run id.
RUN_ID = "run_id"
#: The name of the input for the run id of a stage that is read without an alias.
READS = "reads"
#: The name of the input for the stage's name and values.
STAGE = "stage"
#: The name of the input through which KFP 2.15 and newer pass the task's settings to a distributed stage.
TASK_CONFIG = "task_config"
#: Begins the name of an input that KFP passes into a group of tasks with another one, the loop's item.
INNER = "inner_"
#: The suffixes of inputs' names, by type in the IR.
SUFFIXES = {
    "NUMBER_INTEGER": "_int",
    "NUMBER_DOUBLE": "_float",
    "BOOLEAN": "_bool",
    "LIST": "_list",
    "STRUCT": "_dict",
}
#: Matches what follows a channel's name in the name of its input.
ADDED = rf"({'|'.join(SUFFIXES.values())})?(_\d+)?"
#: The separator of the values of the input ``stage``.
SEPARATOR = "|"


def is_stage_input(name: str) -> bool:
    """Return whether an input may be the one with the stage's name and values; the user's may be called so, too."""
    return re.fullmatch(rf"{STAGE}(_\d+)?", name) is not None


def identifier(name: str) -> str:
    """Return the name with one ``_`` for each run of other characters than ASCII letters, digits and ``_``."""
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
    """Return the input ``stage``: the stage's name, the aliases of those that it reads, and values."""
    encoded = (protocol.encode_alias(alias).replace(SEPARATOR, r"\u007c") for alias in aliases)
    return SEPARATOR.join([stage, *encoded, *values])


# Escapes

#: The characters after a ``$`` that make the kubelet change it.
REWRITTEN_AFTER_DOLLAR = r"[$(\x80-\U0010ffff]"

_REWRITTEN = re.compile(r"\$" + REWRITTEN_AFTER_DOLLAR + r'|\{\{|^\s*\{\s*"(?:Concat|IfPresent)"')
#: Matches backslashes, and the first character of each pair that engines rewrite.
_ESCAPED = re.compile(r"\\|\$(?=" + REWRITTEN_AFTER_DOLLAR + r')|\{(?=\{|\s*"(?:Concat|IfPresent)")')
_LARGE = re.compile("[\U00010000-\U0010ffff]")
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


def large_character(text: str) -> str:
    """Return the first character above U+FFFF in the form for a message; empty if there is none."""
    found = _LARGE.search(text)
    return f"{found.group()!r} (U+{ord(found.group()):X})" if found else ""


def _is_plain(character: str) -> bool:
    # Go quotes the rest of the Basic Multilingual Plane as \\uXXXX, which is valid JSON.
    return character.isprintable() or character in _KEPT_UNPRINTABLE or "\x80" <= character <= "\uffff"


def _octal(character: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in character.encode())
