"""Generate the parts of the reference that come from the code, as plain Markdown.

``python -m dev.reference`` (part of ``make goldens``) rewrites the text in ``docs/reference`` between
``<!-- generated: NAME -->`` and ``<!-- end -->``. A test fails if a page is out of date.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.execution.local.run_options import RunKeywords, RunOptions

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"

_PART = re.compile(r"(?<=<!-- generated: )(?P<name>[\w. :,]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
#: Classes that functions return, and nobody else makes.
RETURNED = ("FanIn", "Host", "HostRun", "LocalRun", "Run")
#: Sections whose text is a list of names.
_LISTS = ("Args", "Attributes", "Raises")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table of these cells."""
    lines = [head, ["---"] * len(head), *([" ".join(cell.replace("|", r"\|").split()) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def commands() -> Iterator[str]:
    """Yield each command with its help and options, and once the options of several commands."""
    from torchx_kfp.entrypoints.cli import cli
    from torchx_kfp.execution.host import settings

    def of_host(command: click.Command) -> list[str]:
        flags = [item.opts[-1] for item in command.params if item.name in settings.FLAGS]
        return flags if len(flags) == len(settings.FLAGS) else []

    def records_of(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
        options = [item for item in command.params if isinstance(item, click.Option)]
        records = [item.get_help_record(context) for item in options if item.opts[-1] not in of_host(command)]
        return [record for record in records if record]

    def of(command: click.Command, context: click.Context) -> Iterator[str]:
        for text in "\n\n".join(map(inspect.cleandoc, filter(None, (command.help, command.epilog)))).split("\n\n"):
            if text.startswith("\b"):
                yield fenced(inspect.cleandoc(text.removeprefix("\b").lstrip("\n")), "text")
            else:
                yield " ".join(text.split())
        records = records_of(command, context)
        if own := [record for record in records if record not in shared]:
            yield table(["option", "meaning"], [[f"`{option}`", meaning] for option, meaning in own])
        also = ", ".join(f"`{option}`" for option, meaning in records if (option, meaning) in shared)
        if also:
            yield f"[Options of several commands](#options-of-several-commands): {also}."
        if flags := of_host(command):
            yield f"[The host](#settings-of-the-host): {', '.join(f'`{flag}`' for flag in flags)}."

    root = click.Context(cli, info_name="torchx-kfp")
    found = [(cli.get_command(root, name), name) for name in cli.list_commands(root)]
    contexts = [click.Context(command, info_name=name, parent=root) for command, name in found if command]
    counts = Counter(record for each in contexts for record in records_of(each.command, each))
    # Of one name, the meaning that most commands share.
    most = {option: (option, meaning) for (option, meaning), _ in reversed(counts.most_common())}
    shared = [record for record in most.values() if counts[record] > 1]
    yield from of(cli, root)
    yield "## Options of several commands"
    yield table(["option", "meaning"], [[f"`{option}`", meaning] for option, meaning in sorted(shared)])
    for each in contexts:
        yield f"## {each.command_path}"
        yield fenced(" ".join(each.command.get_usage(each).removeprefix("Usage: ").split()), "text")
        yield from of(each.command, each)


def fields(module_name: str) -> Iterator[str]:
    """Yield each field of AppDef, Role and Resource with its treatment, and the differences with an engine."""
    module = importlib.import_module(module_name)

    def treatment(said: str) -> list[str]:
        what, _, why = said.partition(":")  # "rejected unless it is 1: a KFP task is one pod"
        return [what, why.strip()]

    for kind, of_kind in module.FIELDS.items():
        yield f"### {kind}"
        yield table(
            ["field", "treatment", "how or why"], [[f"`{name}`", *treatment(said)] for name, said in of_kind.items()]
        )
        rows = []
        for name, without in of_kind.items():
            shared: dict[str, list[str]] = {}
            for engine, kinds in module.WITH_ENGINE.items():
                shared.setdefault(kinds[kind][name], []).append(engine)
            for said, names in shared.items():
                if said != without:
                    which = "all" if len(names) == len(module.WITH_ENGINE) else ", ".join(f"`{one}`" for one in names)
                    rows.append([f"`{name}`", which, *treatment(said)])
        if rows:
            yield f"Fields of `{kind}` with an engine, as far as they differ:"
            yield table(["field", "engine", "treatment", "how or why"], rows)


def settings() -> Iterator[str]:
    """Yield every setting of the connection to a KFP host."""
    from torchx_kfp.execution.host import settings

    rows = []
    for name, setting in settings.SETTINGS.items():
        variables = ", ".join(f"`{it}`" for it in (settings.variable(name), setting.of_client) if it)
        flag = f"`{settings.flag(name)}`" if name in settings.FLAGS else ""
        rows.append([f"`{name}`", flag, variables, f"{setting.help} {setting.more}"])
    yield table(["setting", "flag", "variables", "meaning"], rows)


def events() -> Iterator[str]:
    """Yield every event of a run with its fields."""
    from torchx_kfp.execution.runs.events import NAMES

    rows = []
    for name, kind in NAMES.items():
        names = [field.name for field in dataclasses.fields(kind) if field.name not in ("time", "result", "again")]
        rows.append([f"`{name}`", ", ".join(f"`{field}`" for field in names), markdown(first_paragraph(kind))])
    yield table(["event", "fields", "meaning"], rows)


def exceptions() -> Iterator[str]:
    """Yield the tree of exceptions."""
    from torchx_kfp import errors

    def below(kind: type[errors.TorchxKfpError], indent: str) -> Iterator[str]:
        for child in (one for one in vars(errors).values() if kind in getattr(one, "__bases__", ())):
            code = f", exit code {child.exit_code}" if child.exit_code != kind.exit_code else ""
            value = ", a `ValueError`" if issubclass(child, ValueError) and not issubclass(kind, ValueError) else ""
            said = markdown((child.__doc__ or "").splitlines()[0])
            yield f"{indent}- `{child.__name__}`{value}{code}: {said}"
            yield from below(child, indent + "  ")

    yield "\n".join(below(errors.TorchxKfpError, ""))


def python(module_name: str, *names: str) -> Iterator[str]:
    """Yield public names of a module, by default all, with their signatures and docstrings.

    ``Class:member,member`` leaves out other members, which are for this package, and ``Class:`` all of them.
    """
    module = importlib.import_module(module_name)
    for each in names or module.__all__:
        name, selects, members = each.partition(":")
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue  # constants and unions are told in the text
        yield f"### {name}"
        yield from described(name, thing)
        if inspect.isclass(thing):
            for member in filter(None, members.split(",")) if selects else vars(thing):
                value = inspect.getattr_static(thing, member)
                function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(thing, member, None))
                if not member.startswith("_") and inspect.isroutine(function) and function.__doc__:
                    yield f"#### {name}.{member}"
                    yield from described(f"{name}.{member}", value if isinstance(value, property) else function)


def described(name: str, thing: Any) -> Iterator[str]:
    """Yield the signature of a class, a function or a property, and its docstring."""
    if isinstance(thing, property):
        yield fenced(f"{name}: {thing.fget.__annotations__.get('return', 'Any')}", "py")
    elif not (
        inspect.isclass(thing) and (issubclass(thing, dict | str) or inspect.isabstract(thing) or name in RETURNED)
    ):
        yield fenced(signature(name, thing), "py")
    yield markdown(inspect.getdoc(thing) or "")


class Written(str):
    """An annotation whose representation has no quotes."""

    __repr__ = str.__str__


def signature(name: str, thing: Callable[..., Any]) -> str:
    """Return the signature of a function or class, with a line for each parameter if it exceeds 88 characters."""
    called = inspect.signature(thing)
    parameters: list[str] = []
    shared: set[str] = set()
    for kind, names in ((StageOptions, StageOptions.__dataclass_fields__), (RunOptions, RunKeywords.__annotations__)):
        if thing is not kind and names.keys() <= called.parameters.keys():
            shared, options = set(names), kind
    for one in called.parameters.values():
        if one.name in shared:
            continue  # once, with the class
        if one.kind is one.KEYWORD_ONLY and "*" not in [parameter[:1] for parameter in parameters]:
            parameters.append("*")
        if one.name not in ("self", "cls"):
            annotation = one.annotation if one.annotation is one.empty else short(one.annotation)
            parameters.append(str(one.replace(annotation=annotation, default=constant(one.default))))
    if shared:
        parameters.append(f"**options: {options.__name__}")
    returned = called.return_annotation
    end = ")" if returned in (called.empty, None, "None") or inspect.isclass(thing) else f") -> {short(returned)}"
    line = f"{name}({', '.join(parameters)}{end}"
    return line if len(line) <= 88 else f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + end


def constant(value: Any) -> Any:
    """Return a default for a signature: constants as they are, the name of a class, and ``...`` for other values."""
    if value is inspect.Parameter.empty or value is None or type(value) in (bool, int, float, str, tuple):
        return value
    return Written(value.__name__ if inspect.isclass(value) else "...")


def short(annotation: Any) -> Written:
    """Return an annotation without the names of modules."""
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of the fields of a NamedTuple
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Written(re.sub(r"\b(?:torchx_kfp|collections|typing|specs|dsl)(?:\.\w+)*\.(?=\w)", "", text))


def first_paragraph(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


def fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def markdown(doc: str) -> str:
    """Return a docstring as Markdown: sections as lists, and blocks after ``::`` as code."""
    found: list[str] = []
    blocks = re.split(r"\n{2,}", doc.strip("\n"))
    code: list[str] = []
    for number, block in enumerate(blocks):
        if block.startswith("    "):
            code.append(block)
            if number + 1 == len(blocks) or not blocks[number + 1].startswith("    "):
                found.append(fenced(textwrap.dedent("\n\n".join(code)), "py"))
                code = []
            continue
        head, _, rest = block.partition("\n")
        if _SECTION.match(head):
            text = textwrap.dedent(rest)
            found.append(f"**{head}** {words(text)}" if head[:-1] not in _LISTS else f"**{head}**\n\n{items(text)}")
        else:
            found.append(words(block.removesuffix(":") if block.endswith("::") else block))
    return "\n\n".join(found)


def items(text: str) -> str:
    """Return a Markdown list of named items, each of which starts at a line without indentation."""
    found = re.split(r"\n(?! )", text)
    return "\n".join("- " + words(re.sub(r"^(\*{0,2}\w+(?:, \w+)*)(?=: )", r"`\1`", item)) for item in found)


def words(text: str) -> str:
    """Return a paragraph as one line; lists keep a line for each item."""
    if re.search(r"^- ", text, re.MULTILINE):
        return "\n".join(" ".join(one.split()) for one in re.split(r"\n(?=- )", text.replace("``", "`")))
    return " ".join(text.replace("``", "`").split())


GENERATED: dict[str, Callable[..., Iterator[str]]] = {
    function.__name__: function for function in (commands, fields, settings, events, exceptions, python)
}


def generate(page: str) -> str:
    """Return a page with its generated parts updated."""

    def part(found: re.Match[str]) -> str:
        function, *arguments = found["name"].split()
        return f"{found['name']}{found[2]}\n" + "\n\n".join(GENERATED[function](*arguments)) + "\n\n"

    return _PART.sub(part, page)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if text != (new := generate(text)):
            path.write_text(new, encoding="utf-8")
            print(f"wrote docs/reference/{path.name}")
