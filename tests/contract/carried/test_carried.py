"""The programs that commands carry: what they are made of, what they need, and how large they are."""

from __future__ import annotations

import ast
import re

import pytest

from dev import carry
from torchx_kfp.common import safe_files
from torchx_kfp.contract.carried import storage
from torchx_kfp.contract.carried.programs import LAUNCHER, PUBLISHER, SOURCES
from torchx_kfp.contract.scripts import unpacker_file, workspace_words

#: Names of methods, functions, modules and arguments of the standard library that Python 3.8 lacks.
NEWER = re.compile(
    "removeprefix|removesuffix|bit_count|add_note|(Base)?ExceptionGroup|aiter|anext|pairwise|batched|strict|randbytes|"
    "lcm|nextafter|cbrt|exp2|sumprod|waitstatus_to_exitcode|pidfd_open|pidfd_send_signal|eventfd|process_cpu_count|"
    "orig_argv|stdlib_module_names|file_digest|usedforsecurity|aclosing|graphlib|zoneinfo|tomllib|is_relative_to|"
    "with_stem|hardlink_to|with_segments|full_match|process_group|umask|pipesize|extra_groups|text_encoding|send_fds|"
    "recv_fds|cancel_futures|to_thread|TaskGroup|NoneType|UnionType|get_annotations|UTC|StrEnum|NOFLAG"
)


def test_what_commands_carry_is_made_of_the_modules() -> None:
    assert carry.digest() == SOURCES, "a module has changed: run `make goldens`"
    # A workflow of Argo takes 1 MiB.
    for program, most in ((PUBLISHER, 4_050), (LAUNCHER, 11_500)):
        assert len(program) <= most
        assert "{{" not in program
        assert not re.search(r"[$&<>\\]", program), "engines would rewrite it"
    assert len(unpacker_file()) == 8192, "as much as a stage reads"
    words = workspace_words("")
    assert len(words[2]) <= 740
    assert not re.search(r"\$[$(]|{{|\\", words[2]), "engines would rewrite it"


@pytest.mark.parametrize("module", [*carry.PROGRAMS.values(), "workspace"])
def test_what_commands_carry_needs_only_python_38(module: str) -> None:
    tree = ast.parse(carry.minify(carry.join(module), renames=False), feature_version=(3, 8))
    for node in ast.walk(tree):
        if ast.unparse(node) == "os.umask":  # not the argument of Popen, which is newer
            continue
        names = [getattr(node, field, None) or "" for field in ("attr", "arg", "id", "name", "module")]
        assert not [name for name in names if isinstance(name, str) and NEWER.fullmatch(name)], ast.unparse(node)


def test_programs_and_the_package_keep_their_files_in_one_folder() -> None:
    """Carried modules import nothing of the package, so both have its name."""
    assert (storage.PRIVATE, storage.TEMPORARY) == (safe_files.PRIVATE, safe_files.TEMPORARY)
