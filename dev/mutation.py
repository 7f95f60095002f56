"""Make mutants of the package: changes of one node of a module's text, and nothing else."""

from __future__ import annotations

import ast
import copy
import hashlib
import random
from collections.abc import Iterator
from typing import NamedTuple

from dev.changed import PACKAGE, REPOSITORY

#: What is generated from other modules of its folder, by `python -m dev.carry`.
GENERATED = f"{PACKAGE}/contract/carried/programs.py"
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}


class Mutant(NamedTuple):
    """A node of a module with another text. ``within`` tells apart the statements in which this node occurs."""

    module: str
    function: str
    before: str
    after: str
    within: str


def mutants_of(module: str) -> dict[Mutant, tuple[int, str]]:
    """Return each mutant of a module, with its line and the module's text with it."""
    data = (REPOSITORY / module).read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[Mutant, tuple[int, str]] = {}

    def visit(node: ast.AST, function: str, within: str, field: str) -> None:
        # In Python 3.11, the parts of an f-string have no true places. Mypy checks types.
        if field in ("annotation", "returns") or isinstance(node, ast.JoinedStr) or _is_for_types(node):
            return
        if isinstance(node, ast.stmt):
            within = hashlib.sha256(_head(node).encode()).hexdigest()[:8]
        for new in _changes(node, field):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            after = ast.unparse(new)
            text = after if isinstance(node, ast.stmt) else f"({after})"
            changed = (data[:start] + text.encode() + data[end:]).decode()
            found.setdefault(Mutant(module, function, ast.unparse(node), after, within), (node.lineno, changed))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, function, within, name)

    visit(ast.parse(data), "", "", "")
    return found


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _head(node: ast.stmt) -> str:
    """Return the text of a statement without the statements inside of it."""
    head = copy.copy(node)
    for name, value in (("body", [ast.Pass()]), ("orelse", []), ("finalbody", []), ("handlers", []), ("cases", [])):
        if hasattr(head, name):
            setattr(head, name, value)
    return ast.unparse(head)


def _changes(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """Yield what a node may become."""

    def having(**fields: object) -> ast.AST:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield having(ops=[SWAPS[type(op)]()])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
            yield having(op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool() | int() as value):
            yield ast.Constant((not value) if isinstance(value, bool) else value + 1)
        case ast.Call(keywords=[_, *_] as keywords):
            yield from (having(keywords=[each for each in keywords if each is not one]) for one in keywords if one.arg)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield SWAPS[type(node)]()
    if field in ("test", "ifs") and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        yield ast.UnaryOp(ast.Not(), node)


def sample(count: int, seed: int, inside: tuple[str, ...] = ("",)) -> list[Mutant]:
    """Return mutants of lines that are chosen evenly over the modules whose paths begin like this."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted((REPOSITORY / PACKAGE).rglob("*.py")):
        if (module := str(path.relative_to(REPOSITORY))) != GENERATED and module.startswith(inside):
            for mutant, (line, _) in mutants_of(module).items():
                lines.setdefault((module, line), []).append(mutant)
    chance = random.Random(seed)
    return [chance.choice(lines[place]) for place in chance.sample(sorted(lines), min(count, len(lines)))]


def text_with(mutant: Mutant) -> tuple[str, str] | None:
    """Return the module in which a mutant's text is now, and its text with the mutant; None if the text is gone."""

    def places(module: str) -> list[tuple[str, str]]:
        found = {each: text for each, (_, text) in mutants_of(module).items() if each[1:4] == mutant[1:4]}
        exact = [text for each, text in found.items() if each.within == mutant.within]
        return [(module, text) for text in exact or found.values()]

    found = places(mutant.module) if (REPOSITORY / mutant.module).exists() else []
    if not found and mutant.function:
        # The function may have moved. Its name is looked for first, which is quick.
        name = mutant.function.rpartition(".")[2]
        others = [path for path in (REPOSITORY / PACKAGE).rglob("*.py") if f" {name}" in path.read_text()]
        found = [place for path in others for place in places(str(path.relative_to(REPOSITORY)))]
    return found[0] if len(found) == 1 else None
