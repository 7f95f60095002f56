"""``make test-changed`` runs the tests that a change needs."""

from pathlib import Path

import pytest

from tools.changed import ALWAYS, needed


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("torchx_kfp/text.py", "tests/test_text.py"),
        ("torchx_kfp/backend/logs.py", "tests/backend/test_logs.py"),
        ("torchx_kfp/local/scheduler.py", "tests/local/test_scheduling.py"),
        ("tests/test_text.py", "tests/test_text.py"),
        ("tests/facts.py", "tests/adapter/test_shell.py"),
    ],
)
def test_a_change_needs_the_tests_of_its_module(changed: str, test: str) -> None:
    assert {ALWAYS, test} <= set(needed([Path(changed)]))


def test_a_change_of_one_module_needs_few_tests() -> None:
    assert len(needed([Path("torchx_kfp/backend/logs.py")])) < 10
    assert needed([Path("README.md"), Path("docs/index.md")]) == [ALWAYS]
