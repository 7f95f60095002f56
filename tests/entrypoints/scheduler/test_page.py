"""The page about TorchX's command line: its commands print what it says, on a host whose runs really run."""

from __future__ import annotations

import re

from torchx.runner import Runner

from tests import pages
from tests.entrypoints.scheduler.program import TorchX
from tests.fake_kfp import KfpHost
from tests.pages_host import HOST, Around

PAGE = pages.REPOSITORY / "docs" / "guides" / "torchx.md"


def test_commands_print_what_the_page_says(torchx: TorchX, host: KfpHost) -> None:
    around = Around({"TORCHX_KFP_HOST": host.url}, {HOST: host.url})
    outputs = list(pages.run_commands(PAGE, torchx, {"torchx"}, around))
    for command, printed in outputs:
        assert pages.agrees(command.output, printed), f"{command.line}\n{printed.stdout}{printed.stderr}"
    assert outputs


def test_the_page_has_all_options(runner: Runner) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) == {name for name, _ in runner.scheduler_run_opts("kfp")}
