"""Artifacts on the page: those that KFP's UI renders are rendered, and none can do harm."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.execution.report.runs import write_events
from torchx_kfp.contract import protocol
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.spec import ArtifactType
from torchx_kfp.execution.report import read_model, write_report
from torchx_kfp.execution.report.artifact_views import (
    MOST_BYTES,
    ArtifactView,
    ArtifactViews,
    read_matrix,
    read_roc,
    render_markdown,
)
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished
from torchx_kfp.local import StageResult, State
from torchx_kfp.tracking import current_run

Visit = Callable[..., Chrome]

MATRIX = {
    "annotationSpecs": [{"displayName": "cat"}, {"displayName": "dog"}],
    "rows": [{"row": [90, 10]}, {"row": [2, 8.5]}],
}
ROC = [
    {"confidenceThreshold": 1 - share / 10, "falsePositiveRate": share / 10, "recall": min(1.0, share / 5)}
    for share in range(11)
]
MARKDOWN = """\
# Evaluation

**93 %** were right, see [the docs](https://example.com/docs).

| class | recall |
|---|---:|
| cat | 0.9 |
"""
HTML = "<h2>Errors</h2><p style='color: rgb(1, 2, 3)'>by class</p>"

#: Each of these would set the page's title, make a request, or appear outside its place.
HARM = """<script>parent.document.title = top.document.title = 'broken'</script>
<img src="https://example.com/i" onerror="document.title='broken'"><svg onload="parent.document.title='broken'"></svg>
</script></iframe>"></iframe></textarea></pre></div><script>document.title='broken'</script>
<meta http-equiv="refresh" content="0; url=https://example.com/refresh"><base href="https://example.com/">
<link rel="stylesheet" href="https://example.com/style"><iframe src="https://example.com/frame"></iframe>
<form action="https://example.com/form" target="_top"><button id="send">send</button></form>
<a id="out" href="https://example.com/out" target="_top">out</a><a id="within" href="https://example.com/within">in</a>
<object data="https://example.com/object"></object><video src="https://example.com/video" autoplay></video>
<style>@import url(https://example.com/import); body { background: url(https://example.com/background) }</style>
"""
HARMFUL_MARKDOWN = (
    HARM
    + "[a](javascript:document.title='broken') ![b](https://example.com/picture) "
    + "[c](data:text/html,<script>1</script>) <javascript:document.title='broken'>\n\n"
    + '```x" onclick="document.title=1\n</code></pre><script>document.title=1</script>\n```\n'
)


def artifact(kind: str, uri: object = "", metadata: Mapping[str, Any] | None = None) -> Artifact:
    return Artifact("it", ArtifactType(f"system.{kind}"), str(uri), metadata or {})


def finished(folder: Path, artifacts: Mapping[str, Artifact | list[Artifact]], log: str = "") -> Path:
    """Return the page of a run whose only stage has these artifacts; with a log, the stage has failed."""
    log_file = folder / "make-0" / "log.txt"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_text(log)
    state, now = (State.FAILED if log else State.SUCCEEDED), time.time()
    stage = StageResult("make", "make", state, reason="failed", attempts=1, log_file=log_file, artifacts=artifacts)
    events = [
        RunStarted("made", folder.name, folder, time=now),
        StageFinished(stage, time=now),
        RunFinished(folder.name, state, 1.0, {}, time=now + 1),
    ]
    write_events(folder, events)
    write_report(read_model(folder), folder / "report.html")
    return folder / "report.html"


def view(run: Path, given: Artifact) -> ArtifactView:
    (run / "events.jsonl").touch()
    [found] = ArtifactViews(run, run.parent).of({"it": given})
    return found


class TestViews:
    def test_markdown_and_html_are_shown(self, tmp_path: Path) -> None:
        (tmp_path / "notes").write_text(MARKDOWN)
        (tmp_path / "page").write_text(HTML)
        notes = view(tmp_path, artifact("Markdown", tmp_path / "notes"))
        assert "<h1>Evaluation</h1>" in notes.markdown
        assert "<strong>93 %</strong>" in notes.markdown
        assert '<td style="text-align:right">0.9</td>' in notes.markdown
        assert '<a href="https://example.com/docs" rel="noreferrer">' in notes.markdown
        assert (notes.link.href, notes.link.type) == ("notes", "text/markdown")
        page = view(tmp_path, artifact("HTML", tmp_path / "page"))
        assert page.frame.endswith(HTML)
        assert "default-src 'none'" in page.frame
        assert (page.link.href, page.link.type) == ("page", "text/html")
        plain = view(tmp_path, artifact("Dataset", tmp_path / "page"))
        assert not plain.is_drawn

    @pytest.mark.parametrize("kind", ["Markdown", "HTML"])
    def test_what_is_not_shown_says_why(self, kind: str, tmp_path: Path) -> None:
        runs = tmp_path / "runs"
        runs.mkdir()
        (tmp_path / "secret").write_text("secret")
        (runs / "link").symlink_to(tmp_path / "secret")
        (runs / "loop").symlink_to(runs / "loop")
        (runs / "large").write_text("x" * (MOST_BYTES + 1))
        os.mkfifo(runs / "pipe")
        for where, why in {
            tmp_path / "secret": "outside the folder of runs",
            runs / "link": "outside the folder of runs",
            runs / "../secret": "outside the folder of runs",
            runs / "pipe": "no longer exists",
            runs / "gone": "no longer exists",
            runs: "no longer exists",
            runs / "large": "larger than 1 MB",
            "s3://bucket/page": "not on this machine",
        }.items():
            found = view(runs, artifact(kind, where))
            assert why in found.note
            assert (found.markdown, found.frame) == ("", "")
        assert view(runs, artifact(kind, runs / "loop")).note
        (runs / "binary").write_bytes(b"\xff\x00\xfe")
        assert view(runs, artifact(kind, runs / "binary")).is_drawn

    def test_links_lead_where_the_artifact_is(self, tmp_path: Path) -> None:
        (tmp_path / "model.json").write_text("{}")
        assert view(tmp_path, artifact("Model", tmp_path / "model.json")).link.type == "application/json"
        assert view(tmp_path, artifact("Model", "https://example.com/m")).link.href == "https://example.com/m"
        for uri in ("s3://bucket/m", "javascript://x/%0aalert(1)", "data:text/html,x", "https://[broken"):
            assert view(tmp_path, artifact("Model", uri)).link.href == ""
        # KFP's own URI is that of a file that names the location.
        elsewhere = view(tmp_path, artifact("Model", tmp_path / "model.json", {"location": "s3://b/m", "epochs": 3}))
        assert (elsewhere.link.label, elsewhere.link.href) == ("s3://b/m", "")
        assert elsewhere.metadata == {"epochs": 3}
        there = view(tmp_path, artifact("Model", tmp_path / "x", {"location": "https://example.com/m"}))
        assert there.link.href == "https://example.com/m"

    def test_several_of_one_output(self, tmp_path: Path) -> None:
        from torchx_kfp.execution.pipeline.artifacts import ArtifactList

        several = ArtifactList([artifact("Model", "s3://a"), artifact("Model", "s3://b")])
        found = ArtifactViews(tmp_path, tmp_path).of({"models": several})
        assert [(it.name, it.link.label) for it in found] == [("models[0]", "s3://a"), ("models[1]", "s3://b")]

    def test_metadata_that_is_drawn_is_not_text_as_well(self, tmp_path: Path) -> None:
        found = view(tmp_path, artifact("ClassificationMetrics", "", {"confusionMatrix": MATRIX, "note": "x"}))
        assert found.matrix is not None
        assert found.metadata == {"note": "x"}
        broken = view(tmp_path, artifact("ClassificationMetrics", "", {"confusionMatrix": {"rows": 1}}))
        assert broken.matrix is None
        assert broken.metadata == {"confusionMatrix": {"rows": 1}}

    def test_a_matrix(self) -> None:
        found = read_matrix(MATRIX)
        assert found is not None
        [(cat, cells), (dog, others)] = found.rows
        assert (cat, dog) == ("cat", "dog")
        assert [(text, share) for text, _, share in (*cells, others[1])] == [
            ("90", 0.9),
            ("10", 0.1),
            ("8.5", 8.5 / 10.5),
        ]
        assert cells[1][1] == "cat taken for dog: 10 (10.0%)"

    def test_a_curve(self) -> None:
        found = read_roc(ROC)
        assert found is not None
        assert found.note == "area under the curve 0.7500"
        assert len(found.points) == 11
        assert found.points[5][2] == "false positive rate 0.5, recall 1, threshold 0.5"
        many = read_roc([{"falsePositiveRate": n / 9999, "recall": n / 9999} for n in range(10_000)])
        assert many is not None
        assert len(many.line) < 5000
        assert many.note == "area under the curve 0.5000"

    @pytest.mark.parametrize(
        "given", [None, 1, "x", [], {}, [1], [{}], [{"falsePositiveRate": "x", "recall": 1}] * 2,
                  [{"falsePositiveRate": 2, "recall": 1}] * 2, [{"falsePositiveRate": float("nan"), "recall": 1}] * 2,
                  {"annotationSpecs": [{"displayName": "a"}], "rows": [{"row": [1, 2]}]},
                  {"annotationSpecs": [{"displayName": "a"}], "rows": [{"row": [float("nan")]}]},
                  {"annotationSpecs": [{"displayName": "a"}], "rows": [{"row": [-1]}]},
                  {"annotationSpecs": [], "rows": []}],
    )  # fmt: skip
    def test_what_is_none_of_them(self, given: object) -> None:
        assert read_matrix(given) is None
        assert read_roc(given) is None

    @pytest.mark.lowest
    def test_markdown_is_text_and_links_that_are_safe(self) -> None:
        from tests.execution.report.test_page import _Links

        shown = render_markdown(HARMFUL_MARKDOWN)
        links = _Links()
        links.feed(shown)
        assert links.others == []
        assert set(links.hrefs) == {"https://example.com/picture"}
        assert "<script" not in shown
        assert 'onclick="' not in shown


@pytest.fixture
def harmful(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "harmful"
    folder.mkdir(parents=True)
    (folder / "notes").write_text(HARMFUL_MARKDOWN)
    (folder / "page").write_text(HARM)
    return finished(
        folder,
        {
            "notes": artifact("Markdown", folder / "notes"),
            "page": artifact("HTML", folder / "page"),
            f"m{HARM}": artifact(
                "ClassificationMetrics",
                metadata={
                    "confusionMatrix": {"annotationSpecs": [{"displayName": HARM}], "rows": [{"row": [1]}]},
                    HARM: HARM,
                },
            ),
        },
    )


def requests(browser: Chrome) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [it["params"]["request"]["url"] for it in messages if it["method"] == "Network.requestWillBeSent"]


@pytest.mark.browser
class TestInABrowser:
    def test_what_means_harm_does_none(self, harmful: Path, visit: Visit) -> None:
        browser = visit(harmful)
        browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
        [frame] = browser.find_elements(By.TAG_NAME, "iframe")
        browser.execute_script("arguments[0].scrollIntoView()", frame)
        time.sleep(1)
        page = browser.current_window_handle
        assert browser.title.startswith("made: succeeded")
        assert len(browser.find_elements(By.CSS_SELECTOR, "script, base, meta[http-equiv=refresh], object, form")) == 1
        browser.switch_to.frame(frame)
        assert "send" in browser.find_element(By.TAG_NAME, "body").text, "the content is there"
        for name in ("send", "out", "within"):
            browser.execute_cdp_cmd("Runtime.evaluate", {"expression": "1"})
            for element in browser.find_elements(By.ID, name):
                element.click()
                time.sleep(0.2)
        browser.switch_to.default_content()
        assert browser.window_handles == [page]
        assert browser.current_url == harmful.as_uri()
        assert browser.title.startswith("made: succeeded")
        assert [url for url in requests(browser) if not url.startswith(("file:", "about:"))] == []

    def test_it_is_shown_as_kfp_shows_it(self, tmp_path: Path, visit: Visit) -> None:
        folder = tmp_path / "runs" / "shown"
        folder.mkdir(parents=True)
        (folder / "notes").write_text(MARKDOWN)
        (folder / "page").write_text(HTML)
        page = finished(
            folder,
            {
                "notes": artifact("Markdown", folder / "notes"),
                "page": artifact("HTML", folder / "page"),
                "confusion": artifact("ClassificationMetrics", metadata={"confusionMatrix": MATRIX}),
                "roc": artifact("ClassificationMetrics", metadata={"confidenceMetrics": ROC}),
                "model": artifact("Model", "s3://models/7", {"framework": "torch", "x" * 80: "y" * 300}),
            },
        )
        for width in (1280, 400):
            browser = visit(page, width)
            browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            assert browser.find_element(By.CSS_SELECTOR, ".markdown h1").text == "Evaluation"
            assert [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, ".matrix tbody td")] == [
                "90",
                "10",
                "2",
                "8.5",
            ]
            assert browser.find_element(By.CSS_SELECTOR, ".roc .curve").is_displayed()
            assert "area under the curve 0.7500" in browser.find_element(By.CSS_SELECTOR, ".roc").text
            frame = browser.find_element(By.TAG_NAME, "iframe")
            browser.execute_script("arguments[0].scrollIntoView()", frame)
            browser.switch_to.frame(frame)
            paragraph = browser.find_element(By.TAG_NAME, "p")
            assert paragraph.text == "by class"
            assert paragraph.value_of_css_property("color").replace(" ", "") in ("rgba(1,2,3,1)", "rgb(1,2,3)")
            browser.switch_to.default_content()

    def test_a_failed_stages_log_is_open_at_its_end(self, tmp_path: Path, visit: Visit) -> None:
        lines = [f"line {number}" for number in range(500)]
        browser = visit(finished(tmp_path / "runs" / "failed", {}, "\n".join([*lines, "ValueError: the end"])))
        tail = browser.find_element(By.CSS_SELECTOR, ".tail")
        assert tail.text.endswith("line 499\nValueError: the end")
        bottom = browser.execute_script(
            "const [box, text] = [arguments[0], arguments[0].firstElementChild].map(it => it.getBoundingClientRect());"
            "return [text.height > box.height, Math.abs(text.bottom - box.bottom)]",
            tail,
        )
        assert bottom[0], "there is more than fits"
        assert bottom[1] < 20


# Stored under the tracker base


def test_stored_ones_are_linked_and_shown(tmp_path: Path) -> None:
    base, run_id = str(tmp_path / "base"), "made-1/make/make-0"
    run = current_run(protocol.encode(protocol.StageContext(base, run_id)))
    contents = {"scores.md": MARKDOWN, "errors.html": HTML + HARM, "large.md": "x" * (MOST_BYTES + 1), "b.md": "secret"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        run.add_artifact(name.partition(".")[0], tmp_path / name, store=True, epochs=3)
    run.add_artifact("folder", tmp_path, store=False)
    [changed] = Path(base).rglob("b.md")
    changed.write_text("other!")

    stage = StageResult("make", "make", State.SUCCEEDED, attempts=1, run_id=run_id, tracker_base=base)
    folder, now = tmp_path / "runs" / "made-1", time.time()
    end = RunFinished(folder.name, State.SUCCEEDED, 1.0, {}, time=now)
    write_events(folder, [RunStarted("made", folder.name, folder, time=now), StageFinished(stage, time=now), end])
    write_report(read_model(folder), folder / "report.html")
    page = (folder / "report.html").read_text()

    [place] = Path(base).rglob("scores.md")
    assert f'href="{quote(os.path.relpath(place, folder))}"' in page
    assert "<td>cat</td>" in page
    assert "<dt>size</dt>" in page
    assert "&lt;h2&gt;Errors&lt;/h2&gt;" in page
    assert "<script>parent.document.title" not in page
    assert "larger than 1 MB" in page
    assert "x" * 1000 not in page
    assert "SHA-256" in page
    assert "other!" not in page
    assert "<strong>folder</strong>" not in page, "it is not stored"
