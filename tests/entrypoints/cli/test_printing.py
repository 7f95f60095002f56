"""How values are shown in tables."""

from __future__ import annotations

import pytest

from torchx_kfp.entrypoints.cli.display.printing import show_value

TEXT = {"text": "\u00fcn\u00ef \u2603", "\u65e5\u672c": [1, 2]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(TEXT, '{"text": "\u00fcn\u00ef \u2603", "\u65e5\u672c": [1, 2]}'), (["\u00e9"], '["\u00e9"]'), (True, "true")],
)
def test_text_is_shown_as_it_is(value: object, shown: str) -> None:
    assert show_value(value) == shown
