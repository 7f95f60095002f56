"""Commands of KFP's Python components (``dsl.component``) in compiled pipelines.

A Python component's command is a chain of shell programs. The first installs packages, including KFP, with pip into the
image's own environment. The second writes the function's source into a temporary folder and starts KFP's executor on
it. The source and the executor's arguments follow. On this machine, pip must not touch the environment that the user
works in, and the locally installed KFP executes the function, whatever version compiled it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The variable with the folder of the project whose Python file defines the pipeline.
PROJECT = "TORCHX_KFP_PROJECT"
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
_KFP = re.compile(r"kfp\s*==")
_UNUSED = ("--quiet", "--no-warn-script-location")
# KFP itself, installed from somewhere other than an index (``kfp_package_path``).
_KFP_SOURCE = re.compile(r"^kfp\s*@|kubeflow/pipelines|(^|/)kfp-\d[^/]*\.(whl|tar\.gz|zip)$|/sdk/python/?$")


@dataclass(frozen=True)
class PythonComponent:
    """A Python component, decoded from its command.

    ``installs`` are the words after each ``pip install``, except for the one that installs KFP itself.
    """

    source: str
    arguments: tuple[str, ...]
    installs: tuple[tuple[str, ...], ...] = ()

    @property
    def function(self) -> str:
        """The name of the function."""
        pairs = zip(self.arguments, self.arguments[1:], strict=False)
        return next((value for option, value in pairs if option == "--function_to_execute"), "")

    def command(self, source_file: str, copies: Mapping[str, str]) -> list[str]:
        """Return the command that runs it from a source file; ``copies`` are paths of artifacts by their URIs."""
        module = ("--component_module_path", source_file)
        return ["python3", "-c", _START, json.dumps(copies), *module, *self.arguments]


def parse_command(words: Sequence[str]) -> PythonComponent | None:
    """Return the Python component in a command; None if KFP did not compile the command from one."""
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
        if EXECUTOR not in rest[2]:
            # KFP 1.8 and the betas of 2.0 install KFP as other packages. The locally installed KFP runs it.
            installs = tuple(left for words in installs if (left := tuple(w for w in words if not _KFP.match(w))))
        return PythonComponent(rest[3], rest[4:], installs)
    return None


def names_executor(words: Sequence[str]) -> bool:
    """Return whether the command names KFP's executor, as that of any Python component does."""
    return any(_EXECUTOR.search(word) for word in words)


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
    """Return whether this installs KFP for the executor: installs for users include dependencies."""
    if "--no-deps" in words and any(re.match(r"kfp\s*==", word) for word in words):
        return True
    packages = [word for before, word in zip(("", *words), words, strict=False) if not before.startswith("--")]
    packages = [word for word in packages if not word.startswith("-")]
    return len(packages) == 1 and _KFP_SOURCE.search(packages[0]) is not None
