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
#: Options of other programs, in the modules that call or read them.
OTHERS = {
    "common/archive.py": {"--cached", "--exclude-standard", "--others"},
    "common/git.py": {
        *("--exclude-standard", "--get", "--ignore-submodules", "--includes", "--name-only", "--no-ext-diff"),
        *("--others", "--relative", "--short", "--show-scope", "--verify"),
    },
    "authoring/inline_code.py": {
        *("--check-hash-based-pycs", "--command", "--eval", "--init-file", "--print", "--rcfile", "--split-string"),
    },
    "authoring/engines/volcano.py": {"--publish-not-ready-addresses"},
    "execution/local/packages.py": {
        *("--default-pip", "--disable-pip-version-check", "--extra-index-url", "--find-links", "--index-url"),
        *("--no-input", "--progress-bar", "--trusted-host"),
    },
    "execution/local/executors/attached.py": {"--attach", "--detach-keys", "--interactive", "--tty"},
    "execution/local/executors/container.py": {
        *(
            "--attach",
            "--cap-drop",
            "--cpus",
            "--entrypoint",
            "--gpus",
            "--init",
            "--label",
            "--log-driver",
            "--memory",
        ),
        *("--memory-swap", "--pull", "--quiet", "--security-opt", "--shm-size", "--signal", "--user"),
    },
    "execution/local/executors/engine.py": {"--all", "--filter", "--force", "--format", "--quiet", "--volumes"},
    "execution/pipeline/python_components.py": {"--component", "--function", "--no-deps", "--no-warn-script-location"},
}


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
    """Yield the options in a module's texts, except for docstrings, and those whose names ``flag`` makes."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    described = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, holders) and _is_text(node.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield from _OPTION.findall(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "flag":
            yield from (flag(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def _is_text(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[0], ast.Expr)


def test_messages_name_options_that_help_shows() -> None:
    known = {*shown(cli), "--help"}
    unknown = {
        f"{path}: {option}"
        for file in PACKAGE.rglob("*.py")
        if (path := str(file.relative_to(PACKAGE)))
        for option in named(ast.parse(file.read_text(encoding="utf-8")))
        if option not in known | OTHERS.get(path, set())
    }
    assert not unknown
