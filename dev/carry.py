"""Join the modules of ``contract.carried`` into programs, and pack them for the commands of stages.

``python -m dev.carry`` (part of ``make goldens``) rewrites ``torchx_kfp/contract/carried/programs.py``. A command is
part of KFP's cache key, so the programs are kept in the repository: they must not depend on the zlib and the Python
that compile a pipeline.

A program is the text of its module and of those that it imports, each after those that it imports itself, without the
imports between them, and minified: 216 stages with a result fit into a run, of about 205 otherwise. So the modules of a
program import names from each other (``from torchx_kfp.contract.carried.replica_roles import say``), at the top, and
no name means two things.
"""

from __future__ import annotations

import ast
import base64
import builtins
import hashlib
import json
import os
import re
import sys
import zlib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "torchx_kfp.contract.carried"
FOLDER = REPOSITORY / PACKAGE.replace(".", "/")
CARRIED = FOLDER / "programs.py"
#: The modules that have the function ``main``, by the names of their programs.
PROGRAMS = {"PUBLISHER": "publisher", "LAUNCHER": "launcher"}

#: What only annotations need, which programs do not have.
_FOR_TYPES = ("__future__", "collections.abc", "typing")
#: Base85 is 6 % shorter than base64. Others take the place of characters that engines would rewrite, or that Go's JSON
#: would write as six.
_REPLACED = {"$": ",", "&": ".", "<": "/", ">": ":", "{": "["}
#: Removes the working directory from the path, where an application may have a zlib.py.
_BOOT = (
    "import sys;sys.path=[*filter(None,sys.path)];import base64,zlib;"
    'exec(zlib.decompress(base64.b85decode("{}".translate({}))))'
)
_MODULE = '''"""Programs as arguments of ``python3 -c``. Do not edit: ``make goldens`` writes them."""

#: The SHA-256 of the modules from which the programs were made.
SOURCES = "{digest}"
'''
_PROGRAM = """
#: ``torchx_kfp.contract.carried.{module}``.
{name} = (
{lines}
)
"""


def modules_of(program: str) -> list[str]:
    """Return the modules of the program in a module, each after those that it imports."""
    imports = [node for node in _tree(program).body if isinstance(node, ast.ImportFrom)]
    own = [str(node.module).rpartition(".")[2] for node in imports if _is_own(node)]
    return [*dict.fromkeys(each for name in own for each in modules_of(name)), program]


def digest() -> str:
    """Return the SHA-256 of the modules that the programs are made of.

    That of a program's text would depend on the Python that writes it, see ``ast.unparse``.
    """
    modules = sorted({module for program in PROGRAMS.values() for module in modules_of(program)})
    return hashlib.sha256(b"".join((FOLDER / f"{module}.py").read_bytes() for module in modules)).hexdigest()


def join(program: str) -> str:
    """Return the text of the program in a module.

    Raises:
        ValueError: two modules define the same name.
    """
    statements: dict[str, None] = {}
    defined: dict[str, str] = {}
    for module in modules_of(program):
        for node in _tree(module).body:
            if isinstance(node, ast.ImportFrom) and (node.module in _FOR_TYPES or _is_own(node)):
                continue
            text = ast.unparse(node)
            statements[text] = None
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            for name in (getattr(target, "id", None) or getattr(target, "name", None) for target in targets):
                if name and defined.setdefault(name, text) != text:
                    raise ValueError(f"{name!r} in {module}.py means something else in another module")
    text = "\n".join(statements)
    # What only the package uses of these modules need not travel.
    unused = {defined[name] for name in defined if len(re.findall(rf"\b{name}\b", text)) == 1}
    return "\n".join(line for line in statements if line not in unused) + "\n"


def minify(text: str, *, renames: bool) -> str:
    """Return a program without docstrings, comments and annotations, and with names of one letter if it renames."""
    import python_minifier

    made: str = python_minifier.minify(
        text,
        remove_literal_statements=True,  # docstrings
        rename_locals=renames,
        rename_globals=renames,
        hoist_literals=False,  # they compress best
        preserve_globals=dir(builtins),
    )
    return made


def pack(text: str) -> str:
    """Return a program as an argument of ``python3 -c``."""
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode().translate(str.maketrans(_REPLACED))
    back = ",".join(f"{ord(new)}:{ord(old)}" for old, new in _REPLACED.items())
    return _BOOT.format(packed, f"{{{back}}}")


def _is_own(node: ast.ImportFrom) -> bool:
    return str(node.module).startswith(f"{PACKAGE}.")


def _tree(module: str) -> ast.Module:
    return ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and CI does not rewrite files: run this on your machine, and commit the changes.")
    text = _MODULE.format(digest=digest())
    for name, module in PROGRAMS.items():
        program = pack(minify(join(module), renames=True))
        pieces = [program[start : start + 100] for start in range(0, len(program), 100)]
        lines = "\n".join(
            "    " + (repr(piece) if piece.count('"') > piece.count("'") else json.dumps(piece)) for piece in pieces
        )
        text += _PROGRAM.format(module=module, name=name, lines=lines)
        print(f"{name}: {len(program)} bytes")
    CARRIED.write_text(text, encoding="utf-8")
    print(f"wrote {CARRIED.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
