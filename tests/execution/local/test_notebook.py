"""The page about notebooks, executed as one by Jupyter's kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.pages import REPOSITORY

_BLOCK = re.compile(r"(?<!-->\n)```python\n(.*?)```", re.DOTALL)


class Client(NotebookClient):
    """Keeps what cells have shown, in its order: the notebook has only the last state of a table."""

    shown: list[str]
    on_shown: Callable[[str], None]

    def process_message(self, msg: dict[str, Any], *args: Any) -> Any:
        if html := msg["content"].get("data", {}).get("text/html"):
            self.shown.append(html)
            self.on_shown(html)
        return super().process_message(msg, *args)


def execute(folder: Path, *cells: str, on_shown: Callable[[str], None] = lambda html: None) -> Client:
    """Execute the cells in a folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = Client(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.shown, client.on_shown = [], on_shown
    client.execute()
    return client


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The page's cells, which have ended."""
    text = (REPOSITORY / "docs" / "guides" / "notebooks.md").read_text(encoding="utf-8")
    file, *cells = _BLOCK.findall(text)
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "train.py").write_text(file, encoding="utf-8")
    assert len(cells) == 4
    return execute(folder, *cells)


def states(html: str) -> list[str]:
    """Return the states in a table of stages."""
    return re.findall(r"<tr><td>train[^<]*</td><td>([^<]*)", html)


def test_a_pipeline_is_a_table_that_ends_as_its_result(page: Client) -> None:
    (live, result) = [output for output in page.nb.cells[0].outputs if "data" in output]
    assert live["output_type"] == "display_data"
    assert live["data"]["text/html"] == result["data"]["text/html"]
    assert states(result["data"]["text/html"]) == ["succeeded"] * 3


def test_a_table_changes_and_text_of_stages_is_text(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "loud.py").write_text(
        "import os, time\n\n\ndef loud():\n    print('<script>alert(1)</script>\\x1b[31m', flush=True)\n"
        f"    while not os.path.exists({str(seen)!r}):\n        time.sleep(0.05)\n"
    )

    def is_live(html: str) -> bool:
        return "<td>running</td>" in html and "loud | &lt;script&gt;" in html

    cell = (
        "from kfp import dsl\nfrom torchx_kfp import Stages, local\nimport loud\n\n"
        "@dsl.pipeline(name='p')\ndef p():\n    Stages().python(loud.loud, image='i')\n\nlocal.run(p);"
    )
    shown = execute(tmp_path, cell, on_shown=lambda html: seen.touch() if is_live(html) else None).shown
    assert any(map(is_live, shown))
    assert not [html for html in shown if "<script" in html or "\x1b" in html]
    assert "<pre>" not in shown[-1]
