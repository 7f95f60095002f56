"""``torchx-kfp report``: what it does not ask or write. Its messages are in ``tests/transcripts``."""

from __future__ import annotations

import html
import re
import socket
import unicodedata
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.execution.report.runs import play
from tests.facts import says


@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_a_server_that_only_the_run_names_is_not_asked(call: Call, project: Path, chain: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"{chain}http://127.0.0.1:{server.getsockname()[1]}/x"
        play(project / "local_outputs" / "digits-1", ["train"], tracker_base=base)
        refused = says(base, "only the run names it", "TORCHX_KFP_TRACKER_BASE")
        assert re.search(refused, html.unescape(call("report", "digits-1", "-o", "-").stdout))
        for words in (["results"], ["show"], ["show", "--lineage"], ["compare", "digits-1"]):
            done = call(*words, "digits-1")
            code = 0 if words == ["show"] else 2  # the run itself is here
            assert (done.returncode, bool(re.search(refused, done.stderr))) == (code, True), words
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_page_has_no_characters_that_control_a_terminal(call: Call, project: Path) -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202ered\ud800"
    text = {"result": lambda number: {evil: f"one\r\n{evil}"}, "inputs": lambda number: {evil: evil}}
    play(project / "local_outputs" / "digits-1", [f"train{evil}"], pipeline=evil, **text)
    page = call("report", "digits-1", "-o", "-").stdout
    assert page.count("]0;title") > 5
    assert {it for it in page if unicodedata.category(it) in ("Cc", "Cf", "Cs", "Zl", "Zp")} == {"\n"}
    assert "one\n\N{REPLACEMENT CHARACTER}]0;title" in page
