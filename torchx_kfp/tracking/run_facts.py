"""Facts about a pipeline run as a whole, for whoever finds only its tracker base; statements are about its stages.

They are JSON objects, stored as the statements of stages are (``statements``): each written whole to a file that has
the time as its name, so that programs can add facts at any time, and do not have to read what is there::

    <tracker base>/.torchx_kfp/runs/<run>/<nanoseconds>-<random>   {"code": [{"digest": ..., ...}]}

``<run>`` is the first part of the run ids of its stages: the name of a run on this machine, or its id on KFP. Of
several values of one field, the last one counts. The fields:

- ``code``: what travelled with the run: a list, see ``Code``. Several lists are joined.
- ``tags``: text by name. Several objects are joined; null takes a tag back.
- ``resumes``: the runs from which it has kept stages, a list.

To add a field, describe it here, write it with ``Recorder.add_facts(run, field=value)``, and read it with
``Recorder.facts_of([run])``. A value is anything that JSON can represent; ``null`` takes a field back. ``gc`` removes
the facts with the other records of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchx_kfp.common.git import GitState
from torchx_kfp.common.text import counted, size_text
from torchx_kfp.errors import ArgumentError
from torchx_kfp.tracking.statements import StatementKind

#: The fields of a run.
CODE, TAGS, RESUMES = "code", "tags", "resumes"
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


@dataclass(frozen=True)
class Code:
    """A workspace that travelled with a run.

    Attributes:
        digest: the SHA-256 of its archive, in hexadecimal digits.
        size: the bytes of the archive; None if only its URL was given.
        files: the number of its files, likewise.
        git: the commit that the files are from, if the folder is in a repository.
    """

    digest: str
    size: int | None = None
    files: int | None = None
    git: GitState | None = None


def describe_code(code: Code) -> dict[str, str]:
    """Return what a user is shown about the code of a run, by name: what it is, and where its commit is from."""
    size = (
        "" if code.files is None or code.size is None else f" ({counted(code.files, 'file')}, {size_text(code.size)})"
    )
    text = f"{code.digest[:12]}{size}"
    if git := code.git:
        branch, changed = f" on {git.branch}" if git.branch else "", ", changed" if git.changed else ""
        text += f", commit {git.commit[:7]}{branch}{changed}"
    return {"workspace": text, **({"remote": git.remote} if git and git.remote else {})}


def encode_code(code: Iterable[Code]) -> list[dict[str, object]]:
    """Return the value of the field ``code``."""
    return [asdict(each) for each in code]


def parse_tags(words: Iterable[str]) -> dict[str, str | None]:
    """Read tags that are written as ``NAME=VALUE``; without a value, the tag is taken back.

    Raises:
        ArgumentError: a word has another form, or a name is given twice.
    """
    tags: dict[str, str | None] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not _TAG.fullmatch(name):
            raise ArgumentError(
                f"The tag {word!r} is not NAME=VALUE with a name of ASCII letters, digits and '_', such as team=vision."
            )
        if name in tags:
            raise ArgumentError(f"The tag {name!r} is given twice.")
        tags[name] = value or None
    return tags


def _parse(content: Mapping[str, Any]) -> dict[str, Any]:
    content = {**content}
    if TAGS in content:
        tags = dict(content[TAGS] or {})
        content[TAGS] = {str(name): None if value is None else str(value) for name, value in tags.items()}
    if RESUMES in content:
        content[RESUMES] = [str(run) for run in content[RESUMES] or ()]
    if CODE not in content:
        return content
    code = [
        Code(
            str(found["digest"]),
            None if found.get("size") is None else int(found["size"]),
            None if found.get("files") is None else int(found["files"]),
            None if found.get("git") is None else _parse_git(found["git"]),
        )
        for found in content[CODE] or ()
    ]
    return {**content, CODE: code}


def _parse_git(found: Mapping[str, Any]) -> GitState:
    branch, remote = (found.get(name) for name in ("branch", "remote"))
    return GitState(
        str(found["commit"]),
        None if branch is None else str(branch),
        None if remote is None else str(remote),
        bool(found["changed"]),
    )


def _join(found: list[dict[str, Any]]) -> dict[str, Any]:
    joined = {name: value for facts in found for name, value in facts.items()}
    code: dict[str, Code] = {}
    for each in (each for facts in found for each in facts.get(CODE, ())):
        if each.digest not in code or each.size is not None:
            code[each.digest] = each
    if code:
        joined[CODE] = list(code.values())
    tags = {name: value for facts in found for name, value in facts.get(TAGS, {}).items()}
    joined[TAGS] = {name: value for name, value in tags.items() if value is not None} or None
    return {name: value for name, value in joined.items() if value is not None}


#: The facts of pipeline runs by field. The value of ``code`` is a list of ``Code``.
RUN_FACTS: StatementKind[dict[str, Any], dict[str, Any]] = StatementKind("runs", _parse, _join)
#: The same about the schedules of a host, by their ids: what their runs use that the host will start.
SCHEDULE_FACTS: StatementKind[dict[str, Any], dict[str, Any]] = StatementKind("schedules", _parse, _join)
