"""Links and artifacts of the page; artifacts have metadata, a link, and the visualizations of KFP's UI.

The content of artifacts is not trusted. HTML and Markdown are in a frame of a different origin, without scripts and
requests.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from torchx_kfp.common.text import size_text
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.pipeline.artifacts import LOCATION, Artifact, artifacts_in
from torchx_kfp.execution.report.figures import Figure, draw_roc
from torchx_kfp.execution.report.model import Hyperlink, text
from torchx_kfp.execution.runs.history import run_with
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.tracking.record_tracker import Artifact as RegisteredArtifact

#: The most bytes of an artifact on the page; larger ones are only linked.
MOST_BYTES = 1_000_000
#: The most classes of a drawn confusion matrix.
_MOST_CLASSES = 60
#: The policy of a frame. Its attribute ``sandbox`` also forbids scripts, forms, windows and the page's origin.
_FRAME = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:\">"
)
#: The style of Markdown.
_STYLE = "<style>body { font: 15px/1.5 sans-serif } td, th { padding: 0 1em 0 0 } pre { background: #eee }</style>"


#: The types with which KFP's UI would show stored files, by extension.
_KINDS = {".md": "Markdown", ".markdown": "Markdown", ".html": "HTML", ".htm": "HTML"}


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix with true classes as rows and predicted classes as columns.

    A cell has a text, a title, and its fraction of the row's sum.
    """

    classes: list[str]
    rows: list[tuple[str, list[tuple[str, str, float]]]]


@dataclass(frozen=True)
class ArtifactView:
    """An artifact on the page.

    ``frame`` is the document in a frame; ``note`` says why content is not shown.
    """

    name: str
    kind: str
    link: Hyperlink
    metadata: Mapping[str, Any]
    frame: str = ""
    matrix: Matrix | None = None
    roc: Figure | None = None
    note: str = ""


class Links:
    """Anchors of stages, links relative to the report's folder, and artifacts.

    Args:
        place: the report's folder; None for a report without links to files.
    """

    def __init__(self, record: RunRecord, place: Path | None) -> None:
        self._record, self._place = record, place
        # Files elsewhere are linked but not shown: a shared page must not contain a private file just because a stage
        # has named it as its artifact. A run on a host has no local files.
        self._runs = record.folder.parent.resolve() if record.folder is not None else None
        self._sections = {path: f"t{number}" for number, path in enumerate(record.tasks)}
        self.anchors = {stage.name: f"s{number}" for number, stage in enumerate(record.stages)}

    def section(self, path: str) -> str:
        """Return the anchor of a task, or "" if it has no stage."""
        return self._sections.get(path, "")

    def stage(self, stage: StageState) -> Hyperlink:
        """Return a link to a stage on the page."""
        return Hyperlink(stage.name, f"#{self.anchors[stage.name]}")

    def home(self) -> Hyperlink:
        """Return a link to the run's folder, or to its page in KFP's UI."""
        record = self._record
        if record.folder is None:
            return Hyperlink(record.link, record.link)
        return self.file(record.folder, str(record.folder))

    def log(self, stage: StageState) -> Hyperlink | None:
        """Return a link to a stage's log; None for a run on a host, whose log files are temporary."""
        path = stage.result.log_file
        return None if path is None or None in (self._runs, self._place) else self.file(path, path.name)

    def file(self, path: Path, label: str) -> Hyperlink:
        """Return a link to a local file, without a target if the file does not exist."""
        try:
            is_linked = self._place is not None and path.exists()
            href = quote(os.fsencode(os.path.relpath(path.absolute(), self._place))) if is_linked else ""
        except OSError:
            href = ""
        return Hyperlink(label, href, str(path))

    def made(self, made: Mapping[str, Artifact | list[Artifact]]) -> Iterator[ArtifactView]:
        """Yield the artifacts that a stage declared to KFP."""
        for output, value in made.items():
            those = artifacts_in(value)
            for place, artifact in enumerate(those):
                name = output if len(those) == 1 else f"{output}[{place}]"
                kind = artifact.type.title.removeprefix("system.")
                metadata = {key: value for key, value in artifact.numeric_metadata.items() if key != "display_name"}
                if artifact.location:
                    metadata.pop(LOCATION, None)
                yield _view(name, kind, self._link(name, artifact), metadata, partial(self._text, artifact))

    def recorded(self, found: Mapping[str, RegisteredArtifact]) -> Iterator[ArtifactView]:
        """Yield the artifacts that a stage registered.

        The path of a stored one is derived from the record and the base, so it cannot be another local file. The path
        of a merely registered one is shown as text.
        """
        for artifact in found.values():
            if (stored := artifact.stored) is None:
                yield _view(artifact.name, "", Hyperlink(artifact.path, ""), artifact.metadata, str)
                continue
            kind = _KINDS.get(os.path.splitext(stored.name)[1].lower(), "") if stored.count is None else ""
            link = Hyperlink(artifact.url, "") if "://" in artifact.url else self.file(Path(artifact.url), stored.name)
            files = {} if stored.count is None else {"files": stored.count}
            metadata = {"size": size_text(stored.size), **files, **artifact.metadata}
            yield _view(artifact.name, kind, link, metadata, partial(_stored_text, artifact, stored.size))

    def _link(self, name: str, artifact: Artifact) -> Hyperlink:
        """Return a link to the artifact; only ``http`` and ``https`` URLs can be opened."""
        where = artifact.location or (artifact.path if artifact.is_local else artifact.uri)
        if "://" in where:
            try:
                opens = urlsplit(where).scheme in ("http", "https")
            except ValueError:
                opens = False
            return Hyperlink(where, where if opens else "")
        path = Path(where)
        if not where:
            return Hyperlink("", "")
        return self.file(path, "open" if path.name == name else path.name or where)

    def _text(self, artifact: Artifact) -> str:
        if not artifact.is_local:
            raise _NotShownError("It does not exist locally.")
        path = Path(artifact.path).resolve()
        if not path.is_file():
            raise _NotShownError("It no longer exists.")
        if self._runs is None or run_with(path, self._runs) is None:
            raise _NotShownError("It is outside the folder of runs and therefore not shown.")
        _verify_size(path.stat().st_size)
        return path.read_text(encoding="utf-8", errors="replace")


class _NotShownError(Exception):
    """An artifact's content is not shown; the message says why."""


def _verify_size(size: int) -> None:
    if size > MOST_BYTES:
        raise _NotShownError(f"It is larger than {MOST_BYTES // 1_000_000} MB and therefore not shown.")


def _stored_text(artifact: RegisteredArtifact, size: int) -> str:
    _verify_size(size)
    with artifact.open() as file:
        return file.read().decode("utf-8", errors="replace")


def _view(name: str, kind: str, link: Hyperlink, metadata: Mapping[str, Any], read: Callable[[], str]) -> ArtifactView:
    """Return the view of an artifact; ``read`` returns its text."""
    frame = note = ""
    if kind in ("Markdown", "HTML"):
        try:
            frame = _FRAME + (_as_html(read()) if kind == "Markdown" else read())
            note = "Scripts, links and content from elsewhere are blocked here."
        except _NotShownError as why:
            note = str(why)
        except (OSError, ValueError, RuntimeError, TrackerError) as error:
            note = f"It cannot be read: {getattr(error, 'strerror', None) or error}."
    matrix, roc = read_matrix(metadata.get("confusionMatrix")), draw_roc(metadata.get("confidenceMetrics"))
    drawn = {"confusionMatrix": matrix, "confidenceMetrics": roc}
    rest = {key: value for key, value in metadata.items() if drawn.get(key) is None}
    return ArtifactView(name, kind, link, rest, frame, matrix, roc, note)


def _as_html(text: str) -> str:
    from markdown_it import MarkdownIt

    return _STYLE + str(MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render(text))


def read_matrix(given: Any) -> Matrix | None:
    """Read KFP's ``confusionMatrix``; return None if the value is malformed."""
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
        texts = [text(int(value) if value.is_integer() else value) for value in row]
        titles = [
            f"{name} taken for {other}: {text} ({value / total:.1%})"
            for other, text, value in zip(classes, texts, row, strict=True)
        ]
        matrix.rows.append((name, list(zip(texts, titles, (value / total for value in row), strict=True))))
    return matrix
