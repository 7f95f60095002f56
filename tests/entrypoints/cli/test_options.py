"""Options that messages name are those that help texts show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

import torchx_kfp
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.execution.host.settings import flag

PACKAGE = Path(torchx_kfp.__file__).parent
_OPTION = re.compile(r"(?<![\w'-])--[a-z][a-z-]*[a-z](?![\w-])")


def shown(command: click.Command) -> Iterator[str]:
    """Yield the options in the help text of a command and, for a group, of those in it."""
    context = click.Context(command)
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from shown(inner)


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the options in a module's sentences, except for docstrings, and those whose names ``flag`` makes.

    A text without spaces may be a word of another program's command.
    """
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    described = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, holders) and _is_text(node.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield from _OPTION.findall(node.value) if " " in node.value else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "flag":
            yield from (flag(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def _is_text(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[0], ast.Expr)


def test_messages_name_options_that_help_shows() -> None:
    known = {*shown(cli), "--help"}
    unknown = {
        f"{file}: {option}"
        for file in PACKAGE.rglob("*.py")
        for option in named(ast.parse(file.read_text(encoding="utf-8")))
        if option not in known
    }
    assert not unknown
