"""Artifacts on the page: those that KFP's UI renders are rendered, and none can do harm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.execution.report.artifacts import HARM, HARMFUL_MARKDOWN, HTML, MARKDOWN, MATRIX, ROC, artifact, finished
from tests.execution.report.runs import Page, report, shown, tracked, write_events
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, State

#: The bytes of an artifact that a page has at most.
MOST = 1_000_000


def views(folder: Path, *given: Mapping[str, Any]) -> tuple[Page, list[Any]]:
    """Return the page of a run with these artifacts, and how each is shown."""
    page = Page(finished(folder, {f"a{number:02}": it for number, it in enumerate(given)}).read_text())
    return page, page.of("div.artifact")


def link(page: Page, view: Any) -> tuple[str, str]:
    """Return the label of an artifact's link, and where it leads; empty if nowhere."""
    [found] = page.of("p", view)[0].findall("a") or page.of("p", view)[0].findall("code")
    return shown(found), found.get("href", "")


def facts(page: Page, view: Any) -> dict[str, str]:
    """Return the metadata that is shown as text."""
    return dict(zip(map(shown, page.of("dt", view)), map(shown, page.of("dd", view)), strict=True))


def test_markdown_and_html_are_shown(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text(MARKDOWN)
    (tmp_path / "page").write_text(HTML)
    kinds = (("Markdown", "notes"), ("HTML", "page"), ("Dataset", "page"))
    page, [notes, framed, plain] = views(tmp_path, *(artifact(kind, tmp_path / name) for kind, name in kinds))
    frames = [page.of("iframe", view)[0] for view in (notes, framed)]
    for frame in frames:
        assert "default-src 'none'" in frame.get("srcdoc", "")
        assert frame.get("sandbox") == ""
    markdown = Page(frames[0].get("srcdoc", "").partition("</style>")[2].join(("<body>", "</body>")))
    assert [shown(it) for tag in ("h1", "strong") for it in markdown.of(tag)] == ["Evaluation", "93 %"]
    assert markdown.of("td")[1].get("style") == "text-align:right"
    assert frames[1].get("srcdoc", "").endswith(HTML)
    assert [page.of("a", view)[0].get("href") for view in (notes, framed)] == ["notes", "page"]
    assert not page.of("iframe", plain)


@pytest.mark.parametrize("kind", ["Markdown", "HTML"])
def test_what_is_not_shown_says_why(kind: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "secret").write_text("SECRET")
    (runs / "link").symlink_to(tmp_path / "secret")
    (runs / "loop").symlink_to(runs / "loop")
    (runs / "large").write_text("x" * (MOST + 1))
    (runs / "binary").write_bytes(b"\xff\x00\xfe")
    os.mkfifo(runs / "pipe")
    reasons = {
        tmp_path / "secret": "outside the folder of runs",
        runs / "link": "outside the folder of runs",
        runs / "../secret": "outside the folder of runs",
        runs / "pipe": "no longer exists",
        runs / "gone": "no longer exists",
        runs: "no longer exists",
        runs / "large": "larger than 1 MB",
        "s3://bucket/page": "not exist locally",
        runs / "loop": "",
    }
    page, [*found, binary] = views(runs, *(artifact(kind, uri) for uri in [*reasons, runs / "binary"]))
    for view, why in zip(found, reasons.values(), strict=True):
        assert not page.of("iframe", view)
        assert why in shown(page.of("p.caption", view)[0])
    assert page.of("iframe", binary)
    text = report(runs).read_text()
    assert "SECRET" not in text
    assert "x" * 1000 not in text


def test_links_lead_where_the_artifact_is(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    elsewhere = [{"location": "s3://b/m", "epochs": 3}, {"location": "https://example.com/m"}]
    nowhere = ["s3://bucket/m", "javascript://x/%0aalert(1)", "data:text/html,x", "https://[broken"]
    uris = [tmp_path / "model.json", "https://example.com/m", *nowhere]
    # KFP's own URI is that of a file that names the location.
    given = [artifact("Model", uri) for uri in uris] + [artifact("Model", tmp_path / "x", it) for it in elsewhere]
    page, found = views(tmp_path, *given)
    assert [link(page, view)[1] for view in found[1:-1]] == ["https://example.com/m", *[""] * 5]
    assert (link(page, found[-2]), facts(page, found[-2])) == (("s3://b/m", ""), {"epochs": "3"})
    assert link(page, found[-1])[1] == "https://example.com/m"


def test_several_artifacts_of_one_output_are_numbered(tmp_path: Path) -> None:
    page = Page(finished(tmp_path, {"models": [artifact("Model", "s3://a"), artifact("Model", "s3://b")]}).read_text())
    found = [(shown(page.of("strong", it)[0]), link(page, it)[0]) for it in page.of("div.artifact")]
    assert found == [("models[0]", "s3://a"), ("models[1]", "s3://b")]


def test_a_matrix_and_a_curve_are_drawn_and_not_text_as_well(tmp_path: Path) -> None:
    diagonal = [{"falsePositiveRate": n / 9999, "recall": n / 9999} for n in range(10_000)]
    metadata = [
        {"confusionMatrix": MATRIX, "note": "x"},
        {"confidenceMetrics": ROC},
        {"confidenceMetrics": diagonal},
    ]
    page, [matrix, curve, many] = views(tmp_path, *(artifact("ClassificationMetrics", metadata=it) for it in metadata))
    rows = [[shown(cell) for cell in row] for row in page.of("tr", page.of("tbody", matrix)[0])]
    assert rows == [["cat", "90", "10"], ["dog", "2", "8.5"]]
    cells = page.of("td", page.of("tbody", matrix)[0])
    assert [cell.get("style") for cell in cells] == [f"--share:{share}%" for share in (90.0, 10.0, 19.0, 81.0)]
    assert cells[1].get("title") == "cat taken for dog: 10 (10.0%)"
    assert facts(page, matrix) == {"note": "x"}
    notes = [shown(page.of("p.caption", it)[0]) for it in (curve, many)]
    assert notes == ["area under the curve 0.7500", "area under the curve 0.5000"]
    assert [shown(it) for it in page.of("text.over", curve)] == ["false positive rate"]
    assert [page.of("path.curve", it)[0].get("d", "").count("L") for it in (curve, many)] == [10, 199]


#: Metadata that is neither a matrix nor a curve.
NEITHER: list[object] = [None, 1, "x", [], {}, [1], [{}], {"rows": 1}, {"annotationSpecs": [], "rows": []}]
NEITHER += [[{"falsePositiveRate": rate, "recall": 1}] * 2 for rate in ("x", 2, float("nan"))]
NEITHER += [
    {"annotationSpecs": [{"displayName": "a"}], "rows": [{"row": row}]} for row in ([1, 2], [float("nan")], [-1])
]


def test_what_is_neither_a_matrix_nor_a_curve_stays_text(tmp_path: Path) -> None:
    names = ("confusionMatrix", "confidenceMetrics")
    given = [artifact("ClassificationMetrics", metadata=dict.fromkeys(names, it)) for it in NEITHER]
    page, found = views(tmp_path, *given)
    assert not page.of("table.matrix")
    assert not page.of("svg", page.of("#stages")[0])
    assert [{*facts(page, view)} for view in found] == [{*names}] * len(NEITHER)


@pytest.mark.lowest
def test_html_in_markdown_is_text(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text(HARMFUL_MARKDOWN)
    page, [view] = views(tmp_path, artifact("Markdown", tmp_path / "notes"))
    content = page.of("iframe", view)[0].get("srcdoc", "").partition("</style>")[2]
    markdown = Page(f"<body>{content}</body>")
    tags = {it.tag for it in markdown.root.iter()}
    assert not tags & {"script", "svg", "iframe", "form", "object", "video", "style", "link", "base", "meta"}
    assert {it.get("href") for it in markdown.of("a")} <= {None}


def test_stored_ones_are_linked_and_shown_and_registered_ones_named(tmp_path: Path) -> None:
    base, run_id = tmp_path / "base", "made-1/make/make_1"
    run = tracked(base, run_id)
    contents = {"scores.md": MARKDOWN, "errors.html": HTML + HARM, "large.md": "x" * (MOST + 1), "b.md": "secret"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        run.add_artifact(name.partition(".")[0], tmp_path / name, store=True, epochs=3)
    run.add_artifact("folder", tmp_path, store=False)
    run.add_artifact("where", "s3://elsewhere/7", epochs=4)
    [changed] = base.rglob("b.md")
    changed.write_text("other!")

    stage = StageResult("make", "make", State.SUCCEEDED, attempts=1, execution_id=run_id, tracker_base=str(base))
    folder = tmp_path / "runs" / "made-1"
    start, end = RunStarted("made", folder.name, folder), RunFinished(folder.name, State.SUCCEEDED, 1.0, {})
    write_events(folder, [start, StageFinished(stage), end])
    page = report(folder).read_text()

    [place] = base.rglob("scores.md")
    assert f'href="{quote(os.path.relpath(place, folder))}"' in page
    for text in (
        "&lt;td&gt;cat&lt;/td&gt;",
        "<dt>size</dt>",
        "&lt;h2&gt;Errors&lt;/h2&gt;",
        "larger than 1 MB",
        "SHA-256",
    ):
        assert text in page
    for text in ("<script>parent.document.title", "x" * 1000, "other!"):
        assert text not in page
    for text in ("<strong>folder</strong>", "<strong>where</strong>", "s3:/<wbr>/<wbr>elsewhere/<wbr>7"):
        assert text in page
    assert f'href="{quote(os.path.relpath(tmp_path, folder))}"' not in page, "whoever gets the page gets no other files"
