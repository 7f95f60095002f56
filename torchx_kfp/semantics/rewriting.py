"""The changes that Argo and the kubelet make to text on its way to a stage.

Everything that a stage is given is text of its pod: its command and variables, and its inputs, which KFP's launcher
gets as an argument. Argo fills in its own variables, and the kubelet expands the container's (``expand`` does so byte
for byte as ``k8s.io/kubernetes/third_party/forked/golang/expansion``): ``$(NAME)`` becomes the variable's value, or
stays as it is if there is no such variable; ``$$`` becomes ``$``. The kubelet scans bytes, and treats the byte after
any other ``$`` as a character: if a character that is not ASCII follows, its first byte becomes the character with that
number (seen on a cluster: ``$é`` arrives as ``$Ã`` and a stray byte).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchx_kfp.contract.escapes import REWRITTEN_AFTER_DOLLAR
from torchx_kfp.pipeline.spec import Component

_REWRITTEN = re.compile(rb"\$(?:\$|\(([^)]*)\)|([\x80-\xff]))")
#: Variables that KFP, Argo and Kubernetes set in each container; only the cluster knows their values.
_SET = re.compile(r"KFP_POD_(?:NAME|UID)|(?:ARGO|KUBERNETES)_[A-Z0-9_]+|[A-Z0-9_]+_SERVICE_(?:HOST|PORT)(?:_\w+)?")
_ARGO = r"\{\{=.*?\}\}|\{\{\s*(?:workflow|pod|node|inputs|outputs|tasks|steps|item|retries)\b.*?\}\}"
_CHANGED = re.compile(rf"{_ARGO}|\$(?:\((?P<name>[^)]*)\)|{REWRITTEN_AFTER_DOLLAR})", re.DOTALL)
_LARGE = re.compile("[\U00010000-\U0010ffff]")
#: Characters of context that are shown around a change.
_AROUND = 12


def expand(text: str, environ: Mapping[str, str]) -> bytes:
    """Return a word of a command as the container gets it.

    Args:
        text: the word in the pod's specification.
        environ: the container's variables.
    """

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
    for setting in ("secretAsEnv", "configMapAsEnv"):
        for item in component.platform.get(setting) or ():
            values |= {pair["envVar"]: f"<{pair['envVar']}>" for pair in item.get("keyToEnv") or ()}
    for item in component.platform.get("fieldPathAsEnv") or ():
        values[item["name"]] = f"<{item['fieldPath']}>"
    return values


def find_change(text: str, variables: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return the first piece of a text that is changed, with some context, and the text that arrives in its place.

    Args:
        text: the text in the pipeline.
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


def large_character(text: str) -> str:
    """Return the first character above U+FFFF in the form for a message; empty if there is none."""
    found = _LARGE.search(text)
    return f"{found.group()!r} (U+{ord(found.group()):X})" if found else ""
