"""Applications of the stages in several families. An image needs python3, or only a shell."""

import json
from typing import Any

from torchx.specs import AppDef, Role

from tests.facts import keep

#: Records its arguments, one of its variables, and the arguments of the stages that it reads.
ECHO = """
import json, os, sys
from torchx_kfp.tracking import current_run
run = current_run()
def read(parent):
    return [p.results()["argv"] for p in parent] if isinstance(parent, list) else parent.results()["argv"]
run.put(
    argv=json.dumps(sys.argv[1:]),
    variable=os.environ.get("VARIABLE", ""),
    read=json.dumps({alias: read(parent) for alias, parent in run.parents.items()}),
)
"""

#: Records the results that its first argument describes, and then runs a command.
RECORD = """
import json, os, sys
from torchx_kfp.tracking import current_run
current_run().put(json.loads(sys.argv[1]))
os.system(sys.argv[2])
"""


def python(name: str, code: str, *args: Any, **fields: Any) -> AppDef:
    """Return an application that runs this code."""
    words = [*map(keep, ["-c", code, *args])]
    return AppDef(name, [Role(name, image="python:3.11", entrypoint="python3", args=words, **fields)])


def shell(name: str, script: str, *args: Any, **fields: Any) -> AppDef:
    """Return an application that runs this script, in an image that has a shell only."""
    words = [*map(keep, ["-c", script, "sh", *args])]
    return AppDef(name, [Role(name, image="busybox", entrypoint="sh", args=words, **fields)])


def echo(name: str, *args: Any, **fields: Any) -> AppDef:
    """Return an application that records its arguments, and those of the stages that it reads."""
    return python(name, ECHO, *args, **fields)


def record(name: str, results: str, then: str = "true", **fields: Any) -> AppDef:
    """Return an application that records these results, written as JSON."""
    return python(name, RECORD, results, then, **fields)


def argv(*words: str) -> dict[str, str]:
    """Return the result of ``echo`` for these arguments."""
    return {"argv": json.dumps(list(words))}


def read(**parents: Any) -> dict[str, str]:
    """Return the result of ``echo`` for these arguments of the stages that it reads."""
    text = {name: [json.dumps([it]) for it in words] if isinstance(words, list) else json.dumps([words])
            for name, words in parents.items()}  # fmt: skip
    return {"read": json.dumps(text)}
