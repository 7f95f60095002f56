"""Tags of runs, in spite of clocks and on a host. What commands show of them is in ``tests/transcripts``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.fake_kfp import KfpHost
from torchx_kfp.tracking import FsspecResultTracker


def test_a_tag_counts_whatever_other_clocks_say(project: Path, call: Call) -> None:
    tracker = FsspecResultTracker(project / "base")
    tracker["run/train/1"] = {"x": 1}
    ahead = f"{time.time_ns() + 10**15:019}-00000000"
    tracker.store.write(f".torchx_kfp/runs/run/{ahead}.tags", b'{"tags": {"team": "a"}}')
    assert call("tag", "--tracker-base", "base", "run", "team=b").stdout == "team=b\n"
    assert call("tag", "--tracker-base", "base", "run", "team=c \n 日本").returncode == 0
    shown = json.loads(call("show", "--tracker-base", "base", "run/train", "--json").stdout)
    assert shown["tags"] == {"team": "c \n 日本"}


@pytest.mark.s3
def test_tags_of_a_component_on_a_host(project: Path, call: Call, s3_base: str) -> None:
    with KfpHost(project / "host") as host:
        words = ["--host", host.url]
        submit = ("submit", "utils.echo", *words, "--tracker-base", s3_base)
        found = []
        for more in ([], ["--tag", "team=vision"]):
            done = call(*submit, *more, "--", "--msg", "hi")
            assert done.returncode == 0, done.stderr
            found.append(done.stdout.split()[0])
        assert call("tag", found[1], "stage=final", *words).stdout == "team=vision\nstage=final\n"
        assert call("tag", found[0], *words).stdout == ""
