"""Find text that Argo or the kubelet changes on its way to a stage, or that KFP's compiler left in it.

Everything that a stage receives is text of its pod: its command and variables, and its inputs, which KFP's launcher
gets as an argument. Argo fills in its own variables, and the kubelet expands the container's (``expand`` does so byte
for byte as ``k8s.io/kubernetes/third_party/forked/golang/expansion``): ``$(NAME)`` becomes the variable's value, or
stays as it is if there is no such variable; ``$$`` becomes ``$``. The kubelet scans bytes, and treats the byte after
any other ``$`` as a character: if a character that is not ASCII follows, its first byte becomes the character with that
number (seen on a cluster: ``$é`` arrives as ``$Ã`` and a stray byte).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.contract.inputs import REWRITTEN_AFTER_DOLLAR, large_character
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.pod_settings import FIELDS, VARIABLES, entries
from torchx_kfp.execution.pipeline.spec import Component
from torchx_kfp.execution.pipeline.values import large_integers

#: A channel as text.
CHANNEL_TEXT = re.compile(r"\{\{channel:task=([^;]*);name=([^;]*);type=.*?;\}\}")
#: The fate of a character above U+FFFF, as the rest of a sentence.
REJECTED_CHARACTER = (
    "which KFP's database rejects ('Incorrect string value': its connection is MySQL's utf8). Use other characters, or "
    "escapes that the application decodes"
)
#: The fate of U+007F, as the rest of a sentence.
DELETE = "'\\x7f' (U+007F)"
REJECTED_DELETE = "with which KFP rejects the run. Leave it out, or use an escape that the application decodes"
_REWRITTEN = re.compile(rb"\$(?:\$|\(([^)]*)\)|([\x80-\xff]))")
#: Variables that KFP, Argo and Kubernetes set in each container; only the cluster knows their values.
_SET = re.compile(r"KFP_POD_(?:NAME|UID)|(?:ARGO|KUBERNETES)_[A-Z0-9_]+|[A-Z0-9_]+_SERVICE_(?:HOST|PORT)(?:_\w+)?")
_ARGO = r"\{\{=.*?\}\}|\{\{\s*(?:workflow|pod|node|inputs|outputs|tasks|steps|item|retries)\b.*?\}\}"
_CHANGED = re.compile(rf"{_ARGO}|\$(?:\((?P<name>[^)]*)\)|{REWRITTEN_AFTER_DOLLAR})", re.DOTALL)
#: Characters of context that are shown around a change.
_AROUND = 12


def of_text(
    what: str, text: str, variables: Mapping[str, str], way_out: str = "Pass it as a separate argument"
) -> Iterator[tuple[Kind, str]]:
    """Find problems in a text of a stage, such as a channel that KFP's compiler left in it."""
    if match := CHANNEL_TEXT.search(text):
        yield (
            Kind.FAILS,
            f"contains the channel {_channel(match)!r} as text in {what}, "
            f"{CHANNEL_TEXT.sub(lambda found: f'{{{_channel(found)}}}', text)!r}, where KFP does not fill it in. "
            f"{way_out}",
        )
    if change := find_change(text, variables):
        yield Kind.CHANGED, f"has {change[0]!r} in {what}, which {arrives(change[1])}"
    if "\x7f" in text:
        yield Kind.WORKS_LOCALLY, f"has {DELETE} in {what}, {REJECTED_DELETE}"
    if large := large_character(text):
        yield Kind.MAY_FAIL, f"has {large} in {what}, {REJECTED_CHARACTER}"


def _channel(found: re.Match[str]) -> str:
    return ".".join(filter(None, found.groups()))


def of_numbers(what: str, value: Any) -> Iterator[tuple[Kind, str]]:
    """Find integers that KFP's compiler already rounded: it writes every number as a double."""
    if number := next(large_integers(value), None):
        yield (
            Kind.CHANGED,
            f"has the integer {number:.0f} in {what}, and KFP passes numbers as doubles, which are exact up to "
            "2**53: KFP's compiler may already have rounded it. Pass it as text",
        )


def arrives(text: str) -> str:
    """Return how a text arrives, and the remedy, as the rest of a sentence."""
    return (
        f"arrives as {text!r}: Argo and the kubelet expand the text of a stage. Write it in another way (task_from_app "
        "encodes an AppDef's own arguments and variables), or have the application read it from a file"
    )


def as_text(value: Any) -> str:
    """Return a value as text to search for findings."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def expand(text: str, environ: Mapping[str, str]) -> bytes:
    """Return a word of a command as the container gets it."""

    def replace(found: re.Match[bytes]) -> bytes:
        name, byte = found.groups()
        if byte is not None:
            return b"$" + chr(byte[0]).encode()
        if name is None:
            return b"$"
        value = environ.get(name.decode())
        return found.group() if value is None else value.encode()

    return _REWRITTEN.sub(replace, text.encode())


def variables_of(component: Component) -> dict[str, str]:
    """Return the variables of the component's container; values that only the cluster knows are in ``<>``."""
    values = dict(component.container.env) if component.container is not None else {}
    for _, item in entries(component.platform, VARIABLES):
        values |= {pair["envVar"]: f"<{pair['envVar']}>" for pair in item.get("keyToEnv") or ()}
    for item in component.platform.get(FIELDS) or ():
        values[item["name"]] = f"<{item['fieldPath']}>"
    return values


def find_change(text: str, variables: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return the first changed piece of a text, with some context, and the text that arrives in its place.

    Args:
        variables: the container's variables, besides those that every container has.
    """
    if "$" not in text and "{{" not in text:
        return None
    known = variables or {}
    for found in _CHANGED.finditer(text):
        if _arriving(found, known) != found.group():
            start, end = max(0, found.start() - _AROUND), found.end() + _AROUND
            piece = text[start:end]
            arriving = _CHANGED.sub(lambda part: _arriving(part, known), piece)
            before, after = "…" if start else "", "…" if end < len(text) else ""
            return f"{before}{piece}{after}", f"{before}{arriving}{after}"
    return None


def _arriving(found: re.Match[str], variables: Mapping[str, str]) -> str:
    piece, name = found.group(), found["name"]
    if piece.startswith("{{"):
        return f"<{piece[2:-2].strip()}>"
    if name is not None and name not in variables and _SET.fullmatch(name):
        return f"<{name}>"
    return expand(piece, variables).decode("utf-8", "replace")
