"""What a compiled stage has in place of its workspace's URL, if its AppDef names folders of the author's machine.

Whoever submits the pipeline packs the folders, and fills in the URL. Neither YAML nor JSON nor a shell has to quote the
placeholder, so it can be found in the text of a pipeline.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, unquote_to_bytes

_PLACEHOLDER = re.compile(r"torchx-kfp-folders:([A-Za-z0-9_.~%/=+-]+)")


def folders_placeholder(folders: Mapping[str, str]) -> str:
    """Return the placeholder for these folders: absolute paths, and the path of each in the workspace."""
    pairs = (f"{quote(os.fsencode(folder))}={quote(target)}" for folder, target in folders.items())
    return f"torchx-kfp-folders:{'+'.join(pairs)}"


def find_folders(text: str) -> dict[str, dict[str, str]]:
    """Return the placeholders in a text, and the folders of each."""
    found: dict[str, dict[str, str]] = {}
    for placeholder in _PLACEHOLDER.finditer(text):
        pairs = (pair.partition("=") for pair in placeholder[1].split("+"))
        found[placeholder[0]] = {os.fsdecode(unquote_to_bytes(path)): unquote(target) for path, _, target in pairs}
    return found


def fill_in_folders(text: str, urls: Mapping[str, str]) -> str:
    """Return the text with these URLs in place of the placeholders."""
    return _PLACEHOLDER.sub(lambda placeholder: urls[placeholder[0]], text)
