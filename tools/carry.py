"""Join the modules of ``contract.carried`` into programs, and make them small enough for the commands of stages.

``python -m tools.carry`` (part of ``make goldens``) rewrites ``torchx_kfp/contract/carried/programs.py``. A command is
part of KFP's cache key, so the programs are kept in the repository: they must not depend on the zlib and the Python
that compile a pipeline.

A program is the text of its module and of those that it imports, each after those that it imports itself, without the
imports between them, and without functions and constants that the program does not use. So the modules of a program
import names from each other (``from torchx_kfp.contract.carried.shared import say``), at the top, and no name means two
things. A smaller program of the same modules leaves out what they do only ``if WHOLE``.
"""

from __future__ import annotations

import ast
import base64
import builtins
import hashlib
import itertools
import json
import os
import sys
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "torchx_kfp.contract.carried"
FOLDER = REPOSITORY / PACKAGE.replace(".", "/")
#: The modules that have the function ``main``, by the names of their programs.
PROGRAMS = {
    "PUBLISHER": "publisher",
    "RESULTS_PUBLISHER": "publisher",
    "LAUNCHER": "launcher",
    "ASK": "asking",
    "WORKSPACE": "workspace",
}
#: The programs that are kept as text: files have them, not commands.
TEXTS = {"WORKSPACE"}
#: The programs that leave out what their modules do only if this name is true.
SMALLER = {"RESULTS_PUBLISHER"}
_WHOLE = "WHOLE"
_IS_PROGRAM = "__name__ == '__main__'"
CARRIED = FOLDER / "programs.py"

#: Base85 is 6 % shorter than base64. Others take the place of characters that engines would rewrite, or that Go's JSON
#: would write as six.
_REPLACED = str.maketrans("$&<>{", ",./:[")
#: Removes the working directory from the path, where an application may have a zlib.py.
_BOOT = (
    "import sys;sys.path=[*filter(None,sys.path)];import base64,zlib;"
    'exec(zlib.decompress(base64.b85decode("{}".translate({})),-15))'
)

_ANNOTATIONS = "from __future__ import annotations"

_MODULE = '''"""Programs as arguments of ``python3 -c``, or as text. Do not edit: ``make goldens`` writes them."""

#: The SHA-256 of the modules from which the programs were made.
SOURCES = {digests}
'''
_PROGRAM = """
#: ``torchx_kfp.contract.carried.{module}``.
{name} = (
{lines}
)
"""


def digests() -> dict[str, str]:
    """Return the SHA-256 of each module that the programs are made of.

    That of a program's text would depend on the Python that writes it, see ``ast.unparse``.
    """
    modules = sorted({module for program in PROGRAMS.values() for module in _modules(program)})
    return {module: hashlib.sha256((FOLDER / f"{module}.py").read_bytes()).hexdigest() for module in modules}


def join_program(name: str) -> str:
    """Return the text of the program with this name."""
    return join(PROGRAMS[name], is_whole=name not in SMALLER)


def join(program: str, *, is_whole: bool = True) -> str:
    """Return the text of the program with this module; without what follows ``if WHOLE`` unless it is whole.

    Raises:
        ValueError: a name means two things.
    """
    meanings: dict[str, str] = {}
    statements: list[ast.stmt] = []
    for module in _modules(program):
        for statement in filter(_is_carried, _tree(module).body):
            for name, meaning in _defined(statement):
                if meanings.setdefault(name, meaning) != meaning or hasattr(builtins, name):
                    raise ValueError(f"{name!r} in {module}.py means something else in another module, or in Python")
            if ast.unparse(statement) not in map(ast.unparse, statements):
                statements.append(statement)
    statements.sort(key=lambda statement: not isinstance(statement, (ast.Import, ast.ImportFrom)))
    joined = _Chosen(is_whole).visit(ast.Module(statements, []))
    while _remove_unused(joined):
        pass
    return f"{_ANNOTATIONS}\n{ast.unparse(joined)}\n"


def _tree(module: str) -> ast.Module:
    """Return the module, in which each import imports one name."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    body: list[ast.stmt] = []
    for it in tree.body:
        if isinstance(it, ast.Import):
            body += [ast.Import([name]) for name in it.names]
        elif isinstance(it, ast.ImportFrom):
            body += [ast.ImportFrom(it.module, [name], it.level) for name in it.names]
        else:
            body.append(it)
    return ast.Module(body, [])


class _Chosen(ast.NodeTransformer):
    """Decides each ``if WHOLE`` and ``if WHOLE and ...``, and empties docstrings."""

    def __init__(self, is_whole: bool) -> None:
        self._is_whole = is_whole

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        return ast.Expr(ast.Constant(0)) if isinstance(node.value, ast.Constant) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        test = node.test
        if ast.unparse(test) == _IS_PROGRAM:
            return node.body
        conditions = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        if ast.unparse(conditions[0]) != _WHOLE:
            return node
        if not self._is_whole:
            return node.orelse
        others = conditions[1:]
        if not others:
            return node.body
        return ast.If(others[0] if len(others) == 1 else ast.BoolOp(ast.And(), others), node.body, node.orelse)


def _modules(program: str) -> list[str]:
    """Return the modules of a program, each after those that it imports."""
    found: dict[str, None] = {}
    for statement in _tree(program).body:
        if _is_ours(statement):
            assert isinstance(statement, ast.ImportFrom)
            found.update(dict.fromkeys(_modules(str(statement.module).rpartition(".")[2])))
    return [*found, program]


def _is_ours(statement: ast.stmt) -> bool:
    """Return whether the statement imports a name from another module of the package."""
    return isinstance(statement, ast.ImportFrom) and str(statement.module).startswith(f"{PACKAGE}.")


def _is_carried(statement: ast.stmt) -> bool:
    """Return whether the statement does something: it is not for readers or type checkers, and not in the text yet."""
    text = ast.unparse(statement)
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_for_types = text == "TYPE_CHECKING = False" or text.startswith("if TYPE_CHECKING:")
    return not (text == _ANNOTATIONS or is_docstring or is_for_types or _is_ours(statement))


def _defined(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement defines, each with its meaning."""
    if isinstance(statement, ast.Import):
        name = statement.names[0].name.partition(".")[0]
        yield name, f"import {name}"
    elif isinstance(statement, ast.ImportFrom):
        yield statement.names[0].asname or statement.names[0].name, ast.unparse(statement)
    elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name, ast.unparse(statement)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, ast.unparse(statement)


def _remove_unused(program: ast.Module) -> bool:
    """Remove functions, methods, constants and imports that nothing mentions; return whether there were any."""
    mentioned = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(program)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    }
    removed = False
    for node in ast.walk(program):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            names = [[name for name, _ in _defined(statement)] for statement in node.body]
            used = [not its or not mentioned.isdisjoint(its) or its[0].startswith("__") for its in names]
            removed |= not all(used)
            node.body = list(itertools.compress(node.body, used))
    return removed


def small_program(name: str) -> str:
    """Return the program with this name as an argument of ``python3 -c``."""
    import python_minifier

    text = python_minifier.minify(
        join_program(name).replace(_ANNOTATIONS, "", 1),
        remove_literal_statements=True,  # docstrings
        rename_globals=True,
        # They are what compresses best.
        hoist_literals=False,
        preserve_globals=dir(builtins),
    )
    packed = zlib.compress(text.encode(), 9, wbits=-15)
    back = ",".join(f"{new}:{old}" for old, new in _REPLACED.items())
    return _BOOT.format(base64.b85encode(packed).decode().translate(_REPLACED), f"{{{back}}}")


def text_of(program: str) -> str:
    """Return the minified text that a program carries."""
    packed = program.split('"')[1].translate({new: old for old, new in _REPLACED.items()})
    return zlib.decompress(base64.b85decode(packed), -15).decode()


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and CI does not rewrite files: run this on your machine, and commit the changes.")
    known = "".join(f'\n    "{name}": "{digest}",' for name, digest in digests().items())
    text = _MODULE.format(digests=f"{{{known}\n}}")
    for name, module in PROGRAMS.items():
        program = join_program(name) if name in TEXTS else small_program(name)
        texts = program.splitlines(keepends=True)
        pieces = [
            piece for one in texts for piece in textwrap.wrap(one, 110, drop_whitespace=False, replace_whitespace=False)
        ]
        lines = "\n".join("    " + (repr(piece) if '"' in piece else json.dumps(piece)) for piece in pieces)
        text += _PROGRAM.format(module=module, name=name, lines=lines)
        print(f"{name}: {len(program)} bytes")
    CARRIED.write_text(text, encoding="utf-8")
    print(f"wrote {CARRIED.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
