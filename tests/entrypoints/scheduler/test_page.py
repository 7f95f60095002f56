"""The page about TorchX's command line: its commands print what it says, on a host whose runs really run."""

from __future__ import annotations

import dataclasses
import re

from torchx.runner import Runner

from tests import pages
from tests.entrypoints.scheduler.program import TorchX
from tests.fake_kfp import KfpHost

PAGE = pages.REPOSITORY / "docs" / "guides" / "torchx.md"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_URL = "http://localhost:8080"


def test_commands_print_what_the_page_says(torchx: TorchX, host: KfpHost) -> None:
    user = dataclasses.replace(torchx, variables={**torchx.variables, "TORCHX_KFP_HOST": host.url})
    ids: dict[str, str] = {}
    commands = [command for block in pages.blocks(PAGE) for command in pages.commands(block)]
    count = 0
    for command in commands:
        if not command.line.startswith("torchx "):
            continue
        count += 1
        line = _UUID.sub(lambda found: ids[found[0]], command.line)
        said = user.shell(line)
        # A run is named by the id that the page gives it.
        new = [uuid for uuid in _UUID.findall(command.output) if uuid not in ids]
        ids.update(zip(new, _UUID.findall(said.stdout), strict=False))
        texts = [said.stdout, said.stderr]
        for shown, real in ids.items():
            texts = [text.replace(real, shown) for text in texts]
        printed = pages.Printed(*(text.replace(host.url, _URL) for text in texts), said.returncode)
        assert pages.agrees(command.output, printed), f"{line}\n{said.stdout}{said.stderr}"
    assert count == 6


def test_the_page_has_all_options(runner: Runner) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) == {name for name, _ in runner.scheduler_run_opts("kfp")}
