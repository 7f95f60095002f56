"""Options that messages name are those that help texts show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torchx_kfp
from torchx_kfp.execution.host.settings import flag

PACKAGE = Path(torchx_kfp.__file__).parent
REFERENCE = PACKAGE.parent / "docs" / "reference" / "commands.md"
_OPTION = re.compile(r"(?<![\w'-])--[a-z][a-z-]*[a-z](?![\w-])")


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the options in a module's sentences, except for docstrings, and those whose names ``flag`` makes.

    A text without spaces may be a word of another program's command.
    """
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield from _OPTION.findall(node.value) if " " in node.value else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "flag":
            yield from (flag(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def test_messages_name_options_that_the_reference_has() -> None:
    """It is made from what help texts show."""
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    shown = (line for line in lines if line.startswith(("| `", "[The host]")))
    known = {*_OPTION.findall(" ".join(shown)), "--help", "--version", "--traceback"}
    unknown = {
        f"{file}: {option}"
        for file in PACKAGE.rglob("*.py")
        for option in named(ast.parse(file.read_text(encoding="utf-8")))
        if option not in known
    }
    assert not unknown
