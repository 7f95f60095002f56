"""The exceptions: the tree in the module's docstring is the real one."""

from __future__ import annotations

import re

import pytest

from torchx_kfp import errors
from torchx_kfp.errors import TorchxKfpError


def real_tree(cls: type[TorchxKfpError]) -> dict[str, str]:
    """Return the name of each exception below the class, with the name of its parent."""
    tree = {}
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            tree.update({child.__name__: cls.__name__}, **real_tree(child))
    return tree


def drawn_tree() -> dict[str, str]:
    assert errors.__doc__
    above: list[str] = []
    tree = {}
    for branch, name in re.findall(r"^    ([ │├└─]*)(\w+Error)\b", errors.__doc__, re.MULTILINE):
        depth = len(branch) // 4
        del above[depth:]
        if above:
            tree[name] = above[-1]
        else:
            assert name == "TorchxKfpError"
        above.append(name)
    return tree


def every() -> list[type[TorchxKfpError]]:
    return [getattr(errors, name) for name in ("TorchxKfpError", *real_tree(TorchxKfpError))]


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn_tree() == real_tree(TorchxKfpError)


@pytest.mark.parametrize("cls", every(), ids=lambda cls: cls.__name__)
def test_a_message_shows_as_it_was_written(cls: type[TorchxKfpError]) -> None:
    assert cls.__doc__
    assert str(cls("It's \"wrong\": 'x'.")) == "It's \"wrong\": 'x'."
