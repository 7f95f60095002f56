"""Commands in compiled pipelines: KFP's for Python components (``dsl.component``), this project's for tracked stages.

A Python component's command is a chain of shell programs. The first installs packages, including KFP, with pip into the
image's own environment. The second writes the function's source into a temporary folder and starts KFP's executor on
it. The source and the executor's arguments follow. On this machine, pip must not touch the environment that the user
works in, and the KFP that is installed here executes the function, whatever version compiled it.

A tracked stage's command is a script (``torchx_kfp.adapter.stage.command``) that puts values into the words after it,
or a program that does. Version 0.1.0 compiled only scripts, with spaces between the values.
"""

from __future__ import annotations

import configparser
import contextlib
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The module that reads the executor input, calls the function, and writes the executor output.
EXECUTOR = "kfp.dsl.executor_main"
#: ``import kfp`` also loads KFP's client unless this variable says that a component is running.
RUNTIME_MARK = "_KFP_RUNTIME"

# The executor logs all of its input, which takes dozens of lines; the filter drops them. It also expects copies from
# each store at a path such as /s3/bucket, where KFP's launcher mounts them.
_START = f"""
import json, logging, sys
from kfp.dsl.types.artifact_types import Artifact
copies, get_path = json.loads(sys.argv.pop(1)), Artifact._get_path
Artifact._get_path = lambda self: copies.get(self.uri) or get_path(self)
from {EXECUTOR} import executor_main
own = ("executor", "executor_main", "kfp_config")
logging.getLogger().addFilter(lambda record: record.levelno > logging.INFO or record.module not in own)
executor_main()
"""
# The executor has moved within KFP, and compiled pipelines may still use its older names.
_EXECUTOR = re.compile(r"\bkfp(\.v2)?\.(dsl|components)\.executor_main\b")
_BOOTSTRAP = ("program_path=$(mktemp -d)", '"$program_path/ephemeral_component.py"', '"$@"')
_REST = re.compile(r'"\$0" "\$@"\s*$')
_PIP = re.compile(r"\bpython3? -m pip install\b")
_UNUSED = ("--quiet", "--no-warn-script-location")
# KFP itself, installed from somewhere other than an index (``kfp_package_path``).
_KFP_SOURCE = re.compile(r"^kfp\s*@|kubeflow/pipelines|(^|/)kfp-\d[^/]*\.(whl|tar\.gz|zip)$|/sdk/python/?$")


#: What the script of a tracked stage contains that makes its own run id, and one whose name is the stage's.
_MAKES_RUN_ID, _OWN_NAME = 'export TORCHX_JOB_ID="${KFP_RUN_ID:-', "/$0/"
#: The program that starts an application again.
_RETRIES = "_k= _n=x"
_ATTEMPTS = re.compile(r" -lt (\d+) ")
#: What a script contains that has two words of UI metadata.
_SHOWS = 'printf %b "$2"'
# An octal escape for printf, in a constant of a tracked stage.
_OCTAL = re.compile(rb"\\0([0-7]{1,3})")


@dataclass(frozen=True)
class PythonComponent:
    """A Python component, read from its command.

    ``source`` is None if the code is in the component's image (``target_image``). ``installs`` are the words after each
    ``pip install``, except for the one that installs KFP itself.
    """

    source: str | None
    arguments: tuple[str, ...]
    installs: tuple[tuple[str, ...], ...] = ()

    @property
    def function(self) -> str:
        """The name of the function."""
        pairs = zip(self.arguments, self.arguments[1:], strict=False)
        return next((value for option, value in pairs if option == "--function_to_execute"), "")

    def command(self, source_file: str, copies: Mapping[str, str]) -> list[str]:
        """Return the command that runs it from a source file; ``copies`` has the paths of artifacts by their URIs."""
        module = [] if self.source is None else ["--component_module_path", source_file]
        return ["python3", "-c", _START, json.dumps(copies), *module, *self.arguments]


def parse_command(words: Sequence[str]) -> PythonComponent | None:
    """Return the Python component that a command runs; None if KFP did not compile the command from one."""
    rest = tuple(words)
    installs: tuple[tuple[str, ...], ...] = ()
    if len(rest) > 3 and rest[:2] == ("sh", "-c"):
        found = _pip_installs(rest[2])
        if not found or not _REST.search(rest[2]):
            return None
        installs = tuple(words for words in found if not _is_kfp(words))
        rest = rest[3:]
    if len(rest) > 3 and rest[:2] == ("sh", "-ec"):
        if not _EXECUTOR.search(rest[2]) or not all(part in rest[2] for part in _BOOTSTRAP):
            return None
        return PythonComponent(rest[3], rest[4:], installs)
    if len(rest) > 2 and rest[:2] == ("python3", "-m") and _EXECUTOR.fullmatch(rest[2]):
        return PythonComponent(None, rest[3:], installs)
    return None


def names_executor(words: Sequence[str]) -> bool:
    """Tell whether the command names KFP's executor, and so is some form of Python component."""
    return any(_EXECUTOR.search(word) for word in words)


def find_containerized(function: str, folder: Path) -> Path | None:
    """Return the file of a component whose code is in its image, if this folder has the code, too.

    Like KFP's executor, find it through the file that ``kfp component build`` writes next to the sources.
    """
    config = configparser.ConfigParser()
    config.optionxform = str  # type: ignore[assignment,method-assign]  # names of functions, with their case
    try:
        config.read(folder / "kfp_config.ini", encoding="utf-8")
        path = folder / config.get("Components", function)
    except (configparser.Error, UnicodeDecodeError):
        return None
    return path if path.is_file() else None


def _pip_installs(script: str) -> list[tuple[str, ...]] | None:
    """Return the words after each ``pip install`` in a shell program; None if its quotes are not balanced."""
    installs = []
    for match in _PIP.finditer(script):
        lexer = shlex.shlex(script[match.end() :], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        words: list[str] = []
        try:
            for word in lexer:
                if word in ("&&", "||", ";"):
                    break
                words.append(word)
        except ValueError:
            return None
        installs.append(tuple(word for word in words if word not in _UNUSED))
    return installs


def _is_kfp(words: tuple[str, ...]) -> bool:
    """Tell whether this installs KFP for the executor: an install that users ask for includes dependencies."""
    if "--no-deps" in words and any(re.match(r"kfp\s*==", word) for word in words):
        return True
    packages = [word for before, word in zip(("", *words), words, strict=False) if not before.startswith("--")]
    packages = [word for word in packages if not word.startswith("-")]
    return len(packages) == 1 and _KFP_SOURCE.search(packages[0]) is not None


def fill_in(words: Sequence[str]) -> list[str]:
    """Return the words that a stage's script puts together, without running it.

    The values are those of the input ``stage``.

    Args:
        words: a stage's command, with its placeholders filled in; any other command is returned unchanged.
    """
    return _filled(words)[0]


def application_of(words: Sequence[str]) -> list[str]:
    """Return the words that a stage's script executes, filled in; any other command is returned unchanged.

    They are an ``env`` with the application's variables, if it has any, and its command line.
    """
    filled, start = _filled(words)
    found = _find_retries(filled)
    application = filled[start:] if found is None else [*filled[start : found[0]], *filled[found[0] + 4 :]]
    # Variables that the program around the application needs itself stand at the beginning of the command.
    early = list(itertools.takewhile(lambda word: "=" in word, words[2:])) if start and words[:1] == ["env"] else []
    if not early:
        return application
    return ["env", *early, *(application[1:] if application[:1] == ["env"] else application)]


def retries_of(words: Sequence[str]) -> int:
    """Return how often a stage's own program starts its application again if it fails."""
    found = _find_retries(words)
    return found[1] if found else 0


def _find_retries(words: Sequence[str]) -> tuple[int, int] | None:
    """Return the place and the number of retries of ``adapter/stage/retries`` in a command, which takes four words."""
    for place, word in enumerate(words):
        if word.startswith(_RETRIES) and place > 1 and (found := _ATTEMPTS.search(word)):
            return place - 2, int(found[1]) - 1
    return None


def stage_name_of(words: Sequence[str]) -> str:
    """Return the stage's name in its run id: empty if it is not a tracked stage, or one that reads its run id."""
    script, own, *following = _split(words)
    start = _starting(script, following)
    if start is not None:
        return start.values[0]
    if _MAKES_RUN_ID not in script:
        return ""
    # Before there were values, the name was the script's own.
    return own if _OWN_NAME in script else re.split("[ |]", (*following, "", "")[1])[0]


@dataclass(frozen=True)
class _Start:
    """What the program around the application reads: see ``torchx_kfp.carried.publisher.start``."""

    values: Sequence[str]
    #: The number of aliases among the values.
    unnamed: int
    mask: str
    #: The number of words before the values.
    before: int


def _starting(script: str, words: Sequence[str]) -> _Start | None:
    """Return how a program starts the stage; None if the script does. ``words`` are those after the script's name."""
    at = 2 if _SHOWS in script else 0
    if tuple(words[at : at + 2]) != ("python3", "-c"):
        return None
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        spec = json.loads(words[at + 3])
        before = at + 5 + len(spec["artifacts"])
        unnamed = sum(not alias for alias, _ in spec["reads"])
        return _Start(words[before].split("|"), unnamed, spec.get("mask", ""), before)
    return None


def _split(words: Sequence[str]) -> tuple[str, ...]:
    """Return the script of a command, its name, and the words after them; two empty texts if there is no script."""
    at = words.index("-ec") + 1 if "-ec" in words else len(words)
    return (*words[at:], "", "") if len(words) - at < 2 else tuple(words[at:])


def _filled(words: Sequence[str]) -> tuple[list[str], int]:
    """Return the words, filled in, and the number of those that belong to the script."""
    filled = list(words)
    script, name, *following = _split(words)
    at = len(words) - len(following)
    if not name.startswith("torchx-kfp-"):
        return filled, 0
    start = _starting(script, following)
    if start is not None:
        at += start.before
        filled[at] = start.values[0]
        _fill(filled, at + 1, start.mask, list(start.values[1 + start.unnamed :]))
        return filled, at + 1
    values: list[str] = []
    if "_v=$2" in script:
        filled[at + 1], *values = re.split(r"\|" if "%%|*}" in script else " ", words[at + 1])
        at += 2
    if "_j=" in script:
        # Constant text alternates with run ids of the stages that are read; an empty name stands for the next value.
        while True:
            del values[: words[at].count('""')]
            if words[at].endswith("}"):
                break
            at += 2
        at += 1
    at += 2 if _SHOWS in script else 0
    if "_m=$1" not in script:
        return filled, at
    _fill(filled, at + 1, words[at], values)
    return filled, at + 1


def _fill(words: list[str], start: int, mask: str, values: list[str]) -> None:
    """Fill values into the words from ``start`` on that the mask marks."""
    for place, kind in enumerate(mask, start):
        if kind == "v":
            words[place] += values.pop(0)
        if kind in "bv":
            words[place] = _decode(words[place])


def _decode(text: str) -> str:
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text.encode()).decode(errors="replace")
