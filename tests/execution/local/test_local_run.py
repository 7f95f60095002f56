"""Runs of this machine for programs and notebooks: ``local.attach`` and ``local.runs``."""

from pathlib import Path

import pytest
from kfp import dsl

from tests.execution.local.components import shell
from tests.facts import says
from torchx_kfp import local
from torchx_kfp.errors import ArgumentError, UnknownRunError


@dsl.pipeline(name="two")
def two(fails: bool = False):
    shell(script="echo one; echo more")
    with dsl.If(fails == True):  # noqa: E712 (KFP's form of a condition)
        shell(script="echo broken; exit 3")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [local.run(two, {"fails": fails}, watch=local.Watch()).run_id for fails in (False, True)]


def test_a_run_is_found_and_read(ran: list[str]) -> None:
    assert local.runs() == ran[::-1]
    run = local.attach(ran[0])
    assert (run.run_id, run.wait(local.Watch()).state) == (ran[0], local.State.SUCCEEDED)
    assert run.logs("shell") == "one\nmore\n"
    assert local.attach().run_id == ran[1]
    assert local.attach(f"local_outputs/{ran[0]}").run_id == ran[0]


def test_the_log_is_that_of_the_stage_that_failed(ran: list[str]) -> None:
    assert local.attach().logs() == "broken\n"
    with pytest.raises(ArgumentError, match=says("No stage", ran[0], "/shell")):
        local.attach(ran[0]).logs()
    with pytest.raises(ArgumentError, match=says("'shel'", "shell")):
        local.attach(ran[0]).logs("shel")


def test_the_page_of_a_run(ran: list[str], tmp_path: Path) -> None:
    run = local.attach()
    assert run.report() == tmp_path / "local_outputs" / ran[1] / "report.html"
    assert "broken" in run.report("page.html").read_text()
    with pytest.raises(UnknownRunError, match=says("'tow'", ran[0])):
        local.attach("tow")
