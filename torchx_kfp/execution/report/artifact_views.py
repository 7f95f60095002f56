"""Links of the page, and artifacts: rendered if KFP's UI renders them, and each with its metadata and a link.

The content of artifacts is not trusted. HTML inside Markdown is not rendered. HTML is shown in a frame that does not
run scripts or make requests, and has a different origin than the page.
"""

from __future__ import annotations

import html
import math
import mimetypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from torchx_kfp.common.text import size_text
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.pipeline.artifacts import LOCATION, Artifact, artifacts_in
from torchx_kfp.execution.report.formats import number
from torchx_kfp.execution.report.model import RunView, StageView
from torchx_kfp.execution.runs.history import is_run
from torchx_kfp.tracking.recorder import Artifact as StoredArtifact

#: The largest artifact, in bytes, that the page shows; larger ones are linked.
MOST_BYTES = 1_000_000
#: The largest number of classes for which a confusion matrix is drawn.
_MOST_CLASSES = 60
#: The side of a ROC curve's drawing, and its margins: left, top, right, bottom.
ROC_SIZE, ROC_MARGIN = 240.0, (40.0, 10.0, 10.0, 36.0)
#: The policy of a frame. Its attribute ``sandbox`` also forbids scripts, forms, windows and the page's origin.
_FRAME = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:\">"
)


#: What KFP's UI would call stored files that it could show, by their extensions.
_KINDS = {".md": "Markdown", ".markdown": "Markdown", ".html": "HTML", ".htm": "HTML"}


@dataclass(frozen=True)
class Hyperlink:
    """A link; ``href`` is "" if the target does not exist or a browser cannot open it."""

    label: str
    href: str
    #: The media type of the target, and its whole path or URL if the label is shorter.
    type: str = ""
    title: str = ""


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix: a row for each true class, a column for each predicted one.

    A cell has a text, a title, and its fraction of the row's sum.
    """

    classes: list[str]
    rows: list[tuple[str, list[tuple[str, str, float]]]]


@dataclass(frozen=True)
class Roc:
    """A ROC curve as a path in a square, with a note below it."""

    line: str
    points: list[tuple[float, float, str]]
    ticks: list[tuple[float, float, str]]
    note: str


@dataclass(frozen=True)
class ArtifactView:
    """An artifact on the page.

    ``markdown`` is safe HTML, ``frame`` is the document in a frame, and ``note`` says which content is not shown, and
    why.
    """

    name: str
    kind: str
    link: Hyperlink
    metadata: Mapping[str, Any] = field(default_factory=dict)
    markdown: str = ""
    frame: str = ""
    matrix: Matrix | None = None
    roc: Roc | None = None
    note: str = ""

    @property
    def is_drawn(self) -> bool:
        """Whether the artifact is shown as more than a line."""
        return bool(self.markdown or self.frame or self.matrix or self.roc)


class ArtifactViews:
    """Makes the views of artifacts for a page.

    Args:
        place: the page's folder.
        runs: the folder of all runs; None for a run on a host. Files elsewhere are linked but not shown: people share
            the page, and must not thereby share a private file just because a stage has named it as its artifact.
    """

    def __init__(self, place: Path, runs: Path | None) -> None:
        self._place = place
        self._runs = runs.resolve() if runs is not None else None

    def of(self, made: Mapping[str, Artifact | list[Artifact]]) -> list[ArtifactView]:
        """Return the views of a stage's artifacts."""
        return [
            self._view(name if len(found) == 1 else f"{name}[{number}]", artifact)
            for name, found in ((name, artifacts_in(value)) for name, value in made.items())
            for number, artifact in enumerate(found)
        ]

    def stored(self, found: Mapping[str, StoredArtifact]) -> list[ArtifactView]:
        """Return the views of the artifacts that a stage has stored under the tracker base.

        Their place is derived from the record and the base, so they cannot be other files of this machine.
        """
        return [self._stored_view(artifact) for artifact in found.values() if artifact.stored is not None]

    def _stored_view(self, artifact: StoredArtifact) -> ArtifactView:
        stored, place = artifact.stored, artifact.url
        assert stored is not None
        kind = _KINDS.get(os.path.splitext(stored.name)[1].lower(), "") if stored.count is None else ""
        content, note = _stored_text(artifact) if kind else (None, "")
        return ArtifactView(
            name=artifact.name,
            kind=kind,
            link=Hyperlink(place, "") if "://" in place else self.file(Path(place), stored.name),
            metadata={
                "size": size_text(stored.size),
                **({} if stored.count is None else {"files": stored.count}),
                **artifact.metadata,
            },
            markdown=render_markdown(content) if content is not None and kind == "Markdown" else "",
            frame=_FRAME + content if content is not None and kind == "HTML" else "",
            note=note or ("Scripts and content from elsewhere are blocked here." if kind == "HTML" else ""),
        )

    def file(self, path: Path, label: str, type: str = "") -> Hyperlink:
        """Return a link to a local file; it cannot be opened if the file does not exist."""
        try:
            href = quote(os.fsencode(os.path.relpath(path.absolute(), self._place))) if path.exists() else ""
        except OSError:
            href = ""
        return Hyperlink(label, href, type or mimetypes.guess_type(path.name)[0] or "", str(path))

    def _view(self, name: str, artifact: Artifact) -> ArtifactView:
        kind = artifact.type.title.removeprefix("system.")
        metadata = {key: value for key, value in artifact.facts.items() if key != "display_name"}
        markdown = frame = note = ""
        if kind in ("Markdown", "HTML"):
            content, note = self._content(artifact)
            if content is not None and kind == "Markdown":
                markdown = render_markdown(content)
            elif content is not None:
                frame = _FRAME + content
                note = "Scripts and content from elsewhere are blocked here."
        matrix, roc = read_matrix(metadata.get("confusionMatrix")), read_roc(metadata.get("confidenceMetrics"))
        drawn = {"confusionMatrix": matrix, "confidenceMetrics": roc}
        return ArtifactView(
            name=name,
            kind=kind,
            link=self._link(name, artifact, {"Markdown": "text/markdown", "HTML": "text/html"}.get(kind, "")),
            metadata={
                key: value
                for key, value in metadata.items()
                if drawn.get(key) is None and not (artifact.location and key == LOCATION)
            },
            markdown=markdown,
            frame=frame,
            matrix=matrix,
            roc=roc,
            note=note,
        )

    def _link(self, name: str, artifact: Artifact, type: str) -> Hyperlink:
        """Return a link to the artifact's place. Of URLs, only ``http`` and ``https`` can be opened."""
        where = artifact.location or (artifact.path if artifact.is_here else artifact.uri)
        if "://" in where:
            try:
                opens = urlsplit(where).scheme in ("http", "https")
            except ValueError:
                opens = False
            return Hyperlink(where, where if opens else "", type)
        path = Path(where)
        return (
            self.file(path, "open" if path.name == name else path.name or where, type) if where else Hyperlink("", "")
        )

    def _content(self, artifact: Artifact) -> tuple[str | None, str]:
        """Return the text of the artifact's file, or None and the reason why it is not shown."""
        if not artifact.is_here:
            return None, "It is not on this machine."
        try:
            path = Path(artifact.path).resolve()
            if not path.is_file():
                return None, "It no longer exists."
            inside = path.relative_to(self._runs) if self._runs and path.is_relative_to(self._runs) else None
            # A file next to the runs is of none of them.
            if self._runs is None or inside is None or not is_run(self._runs / inside.parts[0]):
                return None, "It is outside the folder of runs and therefore not shown."
            if path.stat().st_size > MOST_BYTES:
                return None, f"It is larger than {MOST_BYTES // 1_000_000} MB and therefore not shown."
            return path.read_text(encoding="utf-8", errors="replace"), ""
        except (OSError, ValueError, RuntimeError) as error:
            return None, f"It cannot be read: {getattr(error, 'strerror', None) or error}."


def _stored_text(artifact: StoredArtifact) -> tuple[str | None, str]:
    """Return the text of a stored file, or None and the reason why it is not shown."""
    if artifact.stored is None or artifact.stored.size > MOST_BYTES:
        return None, f"It is larger than {MOST_BYTES // 1_000_000} MB and therefore not shown."
    try:
        with artifact.open() as file:
            return file.read().decode("utf-8", errors="replace"), ""
    except TrackerError as error:
        return None, f"It cannot be read: {error}"


class Links(ArtifactViews):
    """Anchors of stages, and relative links from the report's folder."""

    def __init__(self, run: RunView, place: Path) -> None:
        super().__init__(place, run.folder.parent if run.folder is not None else None)
        self._run = run
        numbers: dict[str, int] = {}
        self._sections = {stage.path: numbers.setdefault(stage.path, len(numbers)) for stage in run.stages}
        self.anchors = {stage.name: f"s{number}" for number, stage in enumerate(run.stages)}

    def section(self, path: str) -> str:
        return f"t{self._sections[path]}" if path in self._sections else ""

    def stage(self, stage: StageView) -> Hyperlink:
        return Hyperlink(stage.name, f"#{self.anchors[stage.name]}")

    def home(self) -> Hyperlink:
        """Return a link to the run's folder, or to its page in KFP's UI."""
        run = self._run
        return Hyperlink(run.link, run.link) if run.folder is None else self.file(run.folder, str(run.folder))

    def log(self, stage: StageView) -> Hyperlink | None:
        """Return a link to a stage's log. That of a run on a host is read into a file which does not last."""
        path = stage.result.log_file
        return None if path is None or self._run.folder is None else self.file(path, path.name)


def render_markdown(text: str) -> str:
    """Render Markdown as HTML that is safe on a page: HTML in it becomes text, and remote pictures become links."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    plain = markdown.renderer.rules["image"]  # type: ignore[attr-defined]

    def image(self: Any, tokens: Sequence[Any], number: int, options: Any, env: Any) -> str:
        source = str(tokens[number].attrGet("src") or "")
        if source.startswith("data:image/"):
            return str(plain(tokens, number, options, env))
        label = tokens[number].content or source
        return f'<a href="{html.escape(source)}" rel="noreferrer">{html.escape(label)}</a>'

    def link(self: Any, tokens: Sequence[Any], number: int, options: Any, env: Any) -> str:
        tokens[number].attrSet("rel", "noreferrer")
        return str(self.renderToken(tokens, number, options, env))

    markdown.add_render_rule("image", image)
    markdown.add_render_rule("link_open", link)
    return str(markdown.render(text))


def read_matrix(given: Any) -> Matrix | None:
    """Read KFP's ``confusionMatrix``; return None if the value is not one."""
    try:
        classes = [str(it["displayName"]) for it in given["annotationSpecs"]]
        rows = [[float(value) for value in it["row"]] for it in given["rows"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not 0 < len(classes) <= _MOST_CLASSES or [len(row) for row in rows] != [len(classes)] * len(classes):
        return None
    if not all(math.isfinite(value) and value >= 0 for row in rows for value in row):
        return None
    matrix = Matrix(classes, [])
    for name, row in zip(classes, rows, strict=True):
        total = max(sum(row), 1e-300)
        texts = [number(int(value) if value.is_integer() else value) for value in row]
        titles = [
            f"{name} taken for {other}: {text} ({value / total:.1%})"
            for other, text, value in zip(classes, texts, row, strict=True)
        ]
        matrix.rows.append((name, list(zip(texts, titles, (value / total for value in row), strict=True))))
    return matrix


def read_roc(given: Any) -> Roc | None:
    """Read KFP's ``confidenceMetrics`` as a curve; return None if the value is not one."""
    try:
        points = sorted(
            (float(it["falsePositiveRate"]), float(it["recall"]), float(it.get("confidenceThreshold", math.nan)))
            for it in given
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if len(points) < 2 or not all(0 <= x <= 1 and 0 <= y <= 1 for x, y, _ in points):
        return None
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1, _), (x2, y2, _) in pairwise(points))
    left, top, right, bottom = ROC_MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return round(left + x * (ROC_SIZE - left - right), 1), round(
            ROC_SIZE - bottom - y * (ROC_SIZE - top - bottom), 1
        )

    # Curves can have a point for each sample; a few hundred look the same.
    every = math.ceil(len(points) / 200)
    shown = list(dict.fromkeys([*points[::every], points[-1]]))
    return Roc(
        line="M" + "L".join(f"{x} {y}" for x, y in (place(x, y) for x, y, _ in shown)),
        points=[
            (*place(x, y), f"false positive rate {x:.3g}, recall {y:.3g}" + (f", threshold {t:.3g}" if t == t else ""))
            for x, y, t in (shown if len(shown) <= 60 else ())
        ],
        ticks=[(*place(share, share), f"{share:g}") for share in (0, 0.5, 1)],
        note=f"area under the curve {area:.4f}" if points[0][0] == 0 and points[-1][0] == 1 else "",
    )
