"""Write the page: one file with its styles and script, which makes no requests.

Each task has a section; the iterations of a loop share a table.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import clean, counted, duration, moment, shorten
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.walk import safe_name
from torchx_kfp.execution.report import figures, model
from torchx_kfp.execution.report.graph import counts_of, draw_graph, line_through
from torchx_kfp.execution.report.links import Links
from torchx_kfp.execution.report.rows import find_searches, task_tables, view_search
from torchx_kfp.execution.report.timeline import draw_timeline
from torchx_kfp.execution.runs import output_dir_words
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import describe_code

_HERE = Path(__file__).parent
#: The states of runs that need no retry.
_DONE = (State.RUNNING, State.SUCCEEDED)
#: The options of ``local.run`` on the page.
_OPTIONS = ("docker", "parallelism", "directory", "kfp_workspace", "mounts", "timeout", "cache", "fail_fast")
#: The most characters of the pipeline's name in the name of a page.
_LONGEST = 150
#: The last lines of a failed stage's log, the stages with so many, and the lines of further ones.
LINES, FULL_LOGS, FEWER_LINES = 40, 40, 4


def _failures(record: RunRecord) -> Iterator[tuple[StageState, list[str]]]:
    """Yield the failed stages, in the pipeline's order, with the ends of their logs."""
    failed = [stage for stage in record.stages if stage.state is State.FAILED]
    for number, stage in enumerate(failed):
        try:
            yield stage, stage.result.last_lines(LINES if number < FULL_LOGS else FEWER_LINES)
        except OSError as error:
            yield stage, [f"(the log cannot be read: {error.strerror})"]


def write_report(record: RunRecord, path: str | os.PathLike[str] | None = None) -> Path:
    """Write the page, by default to its usual path, and return the path; an existing file is overwritten.

    Raises:
        ArgumentError: the file cannot be written.
        TorchxKfpError: the extra ``pipelines`` is not installed.
    """
    place = page_of(record) if path is None else Path(path)
    path = place.absolute()
    try:
        if not path.parent.is_dir():
            raise ArgumentError(
                f"There is no folder {str(path.parent)!r} for the report. Create it, or choose another one."
            )
        if path.is_dir():
            raise ArgumentError(f"{str(path)!r} is a folder. Give a file for the report: -o {path / 'report.html'}.")
        # Users' text may contain lone surrogates, which UTF-8 cannot encode.
        path.write_bytes(render(record, path.parent).encode("utf-8", "replace"))
    except OSError as error:
        raise ArgumentError(f"The report {str(path)!r} cannot be written: {error.strerror}.") from None
    return place


def page_of(record: RunRecord) -> Path:
    """Return the usual path of a run's page.

    Raises:
        ArgumentError: the path is not a regular file. Another user may have created the run's folder.
    """
    name = f"{safe_name(record.pipeline)[:_LONGEST]}-{record.run_id}.html"
    path = Path(name) if record.folder is None else record.folder.absolute() / "report.html"
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):  # a pipe would never end
        raise ArgumentError(
            f"{str(path)!r} is a symbolic link or a special file. Name another file for the report: -o report.html."
        )
    return path


def render(record: RunRecord, place: Path | None) -> str:
    """Return the page as text, with links relative to the folder ``place``, or without links to files."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return fill(_HERE / "page.html", script=script, **_content(record, place and place.resolve()))


def fill(template: Path, *, script: str = "", forms: str = "'none'", **content: Any) -> str:
    """Return a page as text. Its policy allows only its script and no requests, even if something is not escaped.

    Args:
        template: the template, which also gets ``css``, ``script`` and ``policy``.
        forms: the targets of forms, in the syntax of the policy.
    """
    # A late import: it is slow, and errors about the run do not need it.
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(counted=counted, duration=duration, moment=moment, shorten=shorten)
    environment.globals.update(
        formats=model, line_through=line_through, describe_code=describe_code, State=State, figures=figures
    )
    page = environment.get_template(template.name).render(
        **content,
        css=Markup(style_sheet()),
        script=Markup(script),
        policy=(
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
            f"form-action {forms}; "
            f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        ),
    )
    # Pages may be written to a terminal, and bidirectional text also misleads in a browser.
    return clean(page.replace("\r\n", "\n"))


def style_sheet() -> str:
    """Return ``page.css`` with a color for each state."""
    colors = "".join(f".{state.css} {{ --c: var(--{state.color}); }}\n" for state in State)
    return (_HERE / "page.css").read_text(encoding="utf-8") + colors


def _content(record: RunRecord, place: Path | None) -> dict[str, Any]:
    links = Links(record, place)
    tracked = model.read_tracked(record)
    searches = list(find_searches(record, tracked))
    # Trials are drawn in the section of their search, all rounds together.
    tables = task_tables(record, links, tracked, {trial.run_id for _, search in searches for trial in search.trials})
    folder = record.folder
    return {
        "record": record,
        "run": record.run,
        "counts": counts_of(stage.state for stage in record.stages),
        "attempts": sum(len(stage.attempts) for stage in record.stages),
        "failures": list(_failures(record)),
        "graph": draw_graph(record),
        "timeline": draw_timeline(record),
        "searches": [view_search(record, title, search, links, tracked) for title, search in searches],
        "tables": tables,
        "tracked": tracked,
        "unreadable": list(dict.fromkeys([*record.corrupt, *tracked.problems])),
        "links": links,
        "arguments": record.arguments,
        "options": {name: it for name, it in record.options.items() if name in _OPTIONS and it not in (None, "", [])},
        "retry": shlex.join(["torchx-kfp", "retry", folder.name, *output_dir_words(folder)])
        if folder and record.run.state not in _DONE
        else "",
    }
