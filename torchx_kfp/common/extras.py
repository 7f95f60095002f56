"""The extras of an installation, and the error about a missing one.

The base distribution, which applications import, only needs fsspec. Authoring, the command line and local runs need the
extra ``pipelines``; some features need another one.
"""

from __future__ import annotations

from importlib import util

from torchx_kfp.errors import MissingExtraError

#: Each extra with the modules that it installs (pyproject.toml names their distributions).
MODULES = {
    "pipelines": (
        "click",
        "jinja2",
        "kfp",
        "markdown_it",
        "packaging",
        "pathspec",
        "rich",
        "torchx",
        "urllib3",
        "yaml",
    ),
    "s3": ("s3fs",),
    "gcs": ("gcsfs",),
    "pandas": ("pandas",),
    "ui": ("waitress",),
    "mlflow": ("mlflow", "torchx"),
    "ax": ("ax", "torchx"),
}


def require(extra: str, what: str) -> None:
    """Check that an extra is installed, without importing it.

    Args:
        extra: its name in pyproject.toml.
        what: the feature that needs it; the message begins with it.

    Raises:
        MissingExtraError: a module of the extra is missing; the message has the command that installs it.
    """
    missing = [module for module in MODULES[extra] if not is_installed(module)]
    if missing:
        from torchx_kfp.common.text import listed  # not before it is needed: a help text must not wait for it

        raise MissingExtraError(
            f'{what} needs the extra "{extra}" (not installed: {listed(missing, 3)}). '
            f"Install it with: {install_line(extra)}"
        )


def install_line(extra: str) -> str:
    """Return the command that installs an extra.

    pip and uv keep the installed torchx-kfp, whatever its source, and add the packages of the extra. So the command
    also works if no index has torchx-kfp.
    """
    return f'pip install "torchx-kfp[{extra}]"'


def is_installed(module: str) -> bool:
    """Return whether a module's top-level package is installed; finding the module itself would import the package."""
    try:
        return util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):  # a module without a spec, such as __main__, or not a module's name
        return False
