"""``make test-changed`` runs the tests that a change needs, and a tier those that it is there for."""

from pathlib import Path

import pytest

from dev.changed import REPOSITORY, SEAMS, needed
from dev.tiers import TIERS
from tests.skipped import missing


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("torchx_kfp/common/text.py", "tests/common/test_text.py"),
        ("torchx_kfp/execution/local/dag_scheduler.py", "tests/execution/local/test_dag_scheduler.py"),
        ("torchx_kfp/authoring/inline_code.py", "tests/authoring/test_inline_code.py"),
        ("torchx_kfp/tracking/cleanup.py", "tests/tracking/test_cleanup.py"),
        ("torchx_kfp/contract/protocol.py", "tests/contract/test_protocol.py"),
        ("tests/common/test_text.py", "tests/common/test_text.py"),
        ("packages/torchx-kfp-dev-host/torchx_kfp_dev_host/tree.py", "tests/execution/host/test_host_server.py"),
        ("tests/facts.py", "tests/authoring/test_inline_code.py"),
    ],
)
def test_a_change_needs_the_tests_of_its_module(changed: str, test: str) -> None:
    assert test in needed([Path(changed)])


def test_a_change_of_one_module_needs_few_tests() -> None:
    for module in ("execution/host/pod_logs.py", "contract/protocol.py", "tracking/cleanup.py"):
        assert len(needed([Path("torchx_kfp", module)])) < 6
    assert needed([Path("README.md"), Path("docs/index.md")]) == []


def test_the_tables_name_what_there_is() -> None:
    named = {path for table in (SEAMS, TIERS) for paths in table.values() for path in paths}
    assert {path for path in named if not (REPOSITORY / path).exists()} == set()


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_of_tests_has_a_target(tier: str) -> None:
    assert f"\ntest-{tier}: " in (REPOSITORY / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("required", "ends"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_what_a_machine_lacks_skips_tests_unless_their_tier_is_required(
    required: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHX_KFP_REQUIRE_DOCKER", required)
    with pytest.raises(ends, match="no engine"):
        missing("docker", "no engine")
