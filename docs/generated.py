"""Directives that generate parts of pages from the code when the pages are built, so that they stay true."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def inline(text: str) -> list[nodes.Node]:
    """Return the text as nodes; text between backticks is code."""
    parts = re.split(r"(`+)(.+?)\1", text)
    found: list[nodes.Node] = []
    for number, part in enumerate(parts):
        if number % 3 == 0 and part:
            found.append(nodes.Text(part))
        elif number % 3 == 2:
            found.append(nodes.literal("", part))
    return found


def paragraph(text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", *inline(" ".join(text.split())))


def table(head: list[str], rows: list[list[str]], widths: list[int]) -> nodes.table:
    """Return a table whose cells are text with code between backticks."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in widths), cols=len(head))
    for kind, lines in ((nodes.thead, [head]), (nodes.tbody, rows)):
        part = kind()
        for line in lines:
            part += nodes.row("", *(nodes.entry("", paragraph(cell)) for cell in line))
        group += part
    return nodes.table("", group)


class Generated(SphinxDirective):
    """A directive that makes nodes from the code."""

    def section(self, title: str, name: str, *content: nodes.Node) -> nodes.section:
        section = nodes.section("", nodes.title("", "", *inline(title)), *content, ids=[name], names=[name])
        self.state.document.note_explicit_target(section)
        return section


class Commands(Generated):
    """Every command of the program with its help and options."""

    def run(self) -> list[nodes.Node]:
        from torchx_kfp.entrypoints.cli import cli

        root = click.Context(cli, info_name="torchx-kfp")
        found: list[nodes.Node] = [*self.help_text(cli), self.option_table(root)]
        for name in cli.list_commands(root):
            command = cli.get_command(root, name)
            assert command is not None
            context = click.Context(command, info_name=name, parent=root)
            usage = command.get_usage(context).removeprefix("Usage: ")
            block = nodes.literal_block(usage, usage, language="text")
            content = (block, *self.help_text(command), self.option_table(context))
            found.append(self.section(f"`torchx-kfp {name}`", f"torchx-kfp-{name}", *content))
        return found

    def help_text(self, command: click.Command) -> Iterator[nodes.Node]:
        for text in inspect.cleandoc(command.help or "").split("\n\n"):
            if text.startswith("\b"):
                text = inspect.cleandoc(text.removeprefix("\b").lstrip("\n"))
                yield nodes.literal_block(text, text, language="console")
            else:
                yield paragraph(text)

    def option_table(self, context: click.Context) -> nodes.Node:
        options = [item for item in context.command.params if isinstance(item, click.Option)]
        records = [record for item in options if (record := item.get_help_record(context))]
        return table(["option", "meaning"], [[f"`{option}`", text] for option, text in records], [35, 65])


class Fields(Generated):
    """Every field of AppDef, Role and Resource, and how it is treated."""

    required_arguments = 1  # the module

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        found: list[nodes.Node] = []
        for kind, of_kind in module.FIELDS.items():
            rows = [[f"`{name}`", *self.treatment(said)] for name, said in of_kind.items()]
            content = [table(["field", "treatment", "how or why"], rows, [20, 25, 55])]
            if rows := self.with_engines(kind, of_kind, module.WITH_ENGINE):
                content.append(paragraph(f"Fields of `{kind}` with an engine, as far as they differ:"))
                content.append(table(["field", "engine", "treatment", "how or why"], rows, [20, 15, 15, 50]))
            found.append(self.section(f"`{kind}`", kind.lower(), *content))
        return found

    def with_engines(
        self, kind: str, without: dict[str, str], engines: dict[str, dict[str, dict[str, str]]]
    ) -> list[list[str]]:
        """Return a row for each treatment of a field that an engine changes, with the engines that share it."""
        rows = []
        for name in without:
            shared: dict[str, list[str]] = {}
            for engine, kinds in engines.items():
                shared.setdefault(kinds[kind][name], []).append(engine)
            for said, names in shared.items():
                if said != without[name]:
                    which = "all" if len(names) == len(engines) else ", ".join(f"`{one}`" for one in names)
                    rows.append([f"`{name}`", which, *self.treatment(said)])
        return rows

    def treatment(self, said: str) -> tuple[str, str]:
        """Split a reason: "mapped: the task's retries", "rejected unless it is 1: a KFP task is one pod"."""
        what, _, why = said.partition(":")
        return what, why.strip()


class Settings(Generated):
    """Every setting of the connection to a KFP host."""

    def run(self) -> list[nodes.Node]:
        from torchx_kfp.execution.host import settings

        rows = []
        for name, setting in settings.SETTINGS.items():
            variables = ", ".join(f"`{it}`" for it in (settings.variable(name), setting.of_client) if it)
            flag = f"`{settings.flag(name)}`" if name in settings.FLAGS else ""
            rows.append([f"`{name}`", flag, variables, f"{setting.help} {setting.more}"])
        return [table(["setting", "flag", "variables", "meaning"], rows, [15, 15, 30, 40])]


class Events(Generated):
    """Every event of a run with its fields."""

    def run(self) -> list[nodes.Node]:
        from torchx_kfp.execution.runs.events import NAMES

        rows = []
        for name, kind in NAMES.items():
            fields = [field.name for field in dataclasses.fields(kind) if field.name not in ("time", "result")]
            first = (kind.__doc__ or "").split("\n\n")[0]
            rows.append([f"`{name}`", ", ".join(f"`{field}`" for field in fields), first])
        return [table(["event", "fields", "meaning"], rows, [20, 30, 50])]


class Exceptions(Generated):
    """The tree of exceptions, with the first line of each one's docstring."""

    def run(self) -> list[nodes.Node]:
        from torchx_kfp import errors

        def below(kind: type[errors.TorchxKfpError]) -> nodes.bullet_list:
            found = nodes.bullet_list()
            for child in sorted(kind.__subclasses__(), key=lambda child: list(vars(errors)).index(child.__name__)):
                code = f", exit code {child.exit_code}" if child.exit_code != kind.exit_code else ""
                value = ", a `ValueError`" if issubclass(child, ValueError) and not issubclass(kind, ValueError) else ""
                said = (child.__doc__ or "").splitlines()[0]
                item = nodes.list_item("", paragraph(f"`{child.__name__}`{value}{code}: {said}"))
                if child.__subclasses__():
                    item += below(child)
                found += item
            return found

        return [below(errors.TorchxKfpError)]


def without_module_docstrings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out the docstrings of modules: pages describe modules in their own words."""
    if what == "module":
        lines.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    app.add_directive("fields", Fields)
    app.add_directive("settings", Settings)
    app.add_directive("events", Events)
    app.add_directive("exceptions", Exceptions)
    app.connect("autodoc-process-docstring", without_module_docstrings)
    return {"parallel_read_safe": True}
