"""The exceptions: their messages show as they were written."""

from __future__ import annotations

import pytest

from torchx_kfp.errors import TorchxKfpError


def every(cls: type[TorchxKfpError] = TorchxKfpError) -> list[type[TorchxKfpError]]:
    """Return the exception and all below it, but for those of other modules."""
    below = [child for child in cls.__subclasses__() if child.__module__ == cls.__module__]
    return [cls, *(each for child in below for each in every(child))]


@pytest.mark.parametrize("cls", every(), ids=lambda cls: cls.__name__)
def test_a_message_shows_as_it_was_written(cls: type[TorchxKfpError]) -> None:
    assert cls.__doc__
    assert str(cls("It's \"wrong\": 'x'.")) == "It's \"wrong\": 'x'."
