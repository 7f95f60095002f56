"""Find modules that Python components (``dsl.component``) import and that only exist locally."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from torchx_kfp.common.text import joined
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.python_components import PROJECT, PythonComponent, parse_command
from torchx_kfp.execution.pipeline.spec import Component

#: Images of Python alone, such as KFP's default.
_PLAIN = re.compile(r"(?:(?:docker\.io/)?library/|docker\.io/)?python(?::[\w.-]*)?(?:@.*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def of_program(component: Component) -> Iterator[tuple[Kind, str]]:
    """Yield the modules that a Python component imports and its image lacks."""
    container = component.container
    program = parse_command(container.words) if container is not None else None
    if container is None or program is None or not _PLAIN.fullmatch(container.image):
        return
    if missing := [name for name in _imported(program) if _is_missing(name, program)]:
        yield (
            Kind.MAY_FAIL,
            f"imports {joined(missing)}, which the image {container.image} lacks: on KFP, a Python component has its "
            "image and packages_to_install only. Name the package there, use an image that has it, or move the code "
            "into the function (a stage of torchx-kfp can take a workspace)",
        )


def annotation_of(program: PythonComponent, name: str) -> str:
    """Return the annotation of a parameter of a component's function; empty if it has none."""
    for node in ast.walk(_parsed(program)):
        if isinstance(node, ast.FunctionDef) and node.name == program.function:
            for argument in (*node.args.args, *node.args.kwonlyargs):
                if argument.arg == name and argument.annotation is not None:
                    return ast.unparse(argument.annotation)
    return ""


def _parsed(program: PythonComponent) -> ast.Module:
    try:
        return ast.parse(program.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file may not be KFP's
        return ast.Module([], [])


def _imported(program: PythonComponent) -> list[str]:
    """Return the modules that a component's function imports, without optional ones."""
    found: dict[str, None] = {}
    module = _parsed(program)
    optional = {
        id(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    for node in ast.walk(module):
        if id(node) in optional:
            continue
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found[node.module.partition(".")[0]] = None
    return [name for name in found if name not in sys.stdlib_module_names and name != "kfp"]


def _is_missing(module: str, program: PythonComponent) -> bool:
    """Return whether no package that the component requests is known to contain a module."""
    asked = {_normal(match[0]) for words in program.installs for word in words if (match := _NAME.match(word))}
    if not asked or _is_of_project(module):
        return True
    having = {_normal(name) for name in metadata.packages_distributions().get(module, ())}
    known = _required(asked)
    # A package that is not installed locally may bring anything.
    return bool(having) and None not in known and not having & known


def _is_of_project(module: str) -> bool:
    folders = filter(None, (os.environ.get(PROJECT, ""), os.curdir))
    return any(
        os.path.exists(os.path.join(folder, f"{module}.py")) or os.path.isdir(os.path.join(folder, module))
        for folder in folders
    )


def _required(names: set[str]) -> set[str | None]:
    """Return the packages with their dependencies; None among them stands for packages not installed locally."""
    known: set[str | None] = set()
    left = sorted(names)
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        try:
            required = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            known.add(None)
            continue
        left += [_normal(match[0]) for text in required if "extra ==" not in text and (match := _NAME.match(text))]
    return known


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
