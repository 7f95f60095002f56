"""Write the page: one file that contains its styles and its script and makes no requests."""

from __future__ import annotations

import base64
import hashlib
import shlex
from pathlib import Path
from typing import Any

from torchx_kfp.errors import ArgumentError
from torchx_kfp.files import write_output
from torchx_kfp.report import formats, parallel, plots
from torchx_kfp.report.artifacts import ROC_MARGIN, ROC_SIZE
from torchx_kfp.report.curves import draw_charts
from torchx_kfp.report.graph import counts_of, draw_graph
from torchx_kfp.report.model import RunView, by_task, find_reads
from torchx_kfp.report.searches import find_searches, trials_of, view_searches
from torchx_kfp.report.sections import Links, failures, sections
from torchx_kfp.report.timeline import draw_timeline
from torchx_kfp.report.tracked import read_tracked
from torchx_kfp.runs import resume_words
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import clean, counted, duration, moment, shorten

_HERE = Path(__file__).parent
#: Runs in these states cannot be resumed.
_DONE = (State.RUNNING, State.SUCCEEDED)


def write_report(run: RunView, path: Path) -> None:
    """Write the page atomically; an existing file is overwritten.

    Raises:
        ArgumentError: the file cannot be written.
        TorchxKfpError: the extra ``pipelines`` is not installed.
    """
    path = path.absolute()
    try:
        if not path.parent.is_dir():
            raise ArgumentError(
                f"There is no folder {str(path.parent)!r} for the report. Create it, or choose another place."
            )
        if path.is_dir():
            raise ArgumentError(f"{str(path)!r} is a folder. Give a file for the report: -o {path / 'report.html'}.")
        # Users' text may contain lone surrogates, which UTF-8 cannot encode.
        write_output(path, render(run, path.parent).encode("utf-8", "replace"))
    except OSError as error:
        raise ArgumentError(f"The report {str(path)!r} cannot be written: {error.strerror}.") from None


def render(run: RunView, place: Path) -> str:
    """Return the page as text; its links are relative to the folder ``place``."""
    # Import it late: it is slow, and errors about the run do not need it.
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(counted=counted, duration=duration, moment=moment, shorten=shorten)
    environment.globals.update(formats=formats, State=State, plots=plots, parallel=parallel)
    environment.globals.update(ROC_SIZE=ROC_SIZE, ROC_MARGIN=ROC_MARGIN)
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    page = environment.get_template("page.html").render(
        **_content(run, place.resolve()),
        css=Markup(style_sheet()),
        script=Markup(script),
        # The browser runs only this script and makes no requests, even if something was not escaped.
        policy=(
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
            f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        ),
    )
    # It may be written to a terminal, and text that changes its direction misleads in a browser, too.
    return clean(page.replace("\r\n", "\n"))


def style_sheet() -> str:
    """Return ``page.css`` and the rules that give each state one of its colors."""
    colors = "".join(f".s-{state.replace(' ', '-')} {{ --c: var(--{state.color}); }}\n" for state in State)
    return (_HERE / "page.css").read_text(encoding="utf-8") + colors


def _content(run: RunView, place: Path) -> dict[str, Any]:
    links = Links(run, place)
    tracked = read_tracked(run)
    reads = find_reads(run.stages, run.run_id)
    searches = find_searches(run.stages, tracked)
    trials = trials_of(searches)
    # Trials are drawn in the section of their search, all rounds together.
    others = [stage for stage in run.stages if stage.result.run_id not in trials]
    return {
        "run": run,
        "counts": counts_of(stage.state for stage in run.stages),
        "attempts": sum(len(stage.attempts) for stage in run.stages),
        "failures": failures(run, links),
        "graph": draw_graph(run),
        "timeline": draw_timeline(run),
        "searches": view_searches(run, searches, links, tracked),
        "figures": plots.draw_plots(others),
        "charts": draw_charts(others, tracked),
        "sections": sections(run, reads, links, tracked),
        "unreadable": list(dict.fromkeys([*run.unreadable, *tracked.problems])),
        "lineage": [(pair, found) for pair, found in by_task(reads).items()],
        "links": links,
        "home": links.home(),
        "resume": shlex.join(["torchx-kfp", *resume_words(run.folder)])
        if run.folder and run.state not in _DONE
        else "",
    }
