"""Write the page: one file that contains its styles and its script and makes no requests.

It has a section for each task, with the iterations of a loop as one table.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torchx_kfp.common.text import clean, counted, duration, moment, shorten
from torchx_kfp.contract.inputs import identifier
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.report import formats, plots
from torchx_kfp.execution.report.artifact_views import ROC_MARGIN, ROC_SIZE, Hyperlink, Links
from torchx_kfp.execution.report.formats import text
from torchx_kfp.execution.report.graph import counts_of, draw_graph, summary
from torchx_kfp.execution.report.model import (
    RunView,
    StageRead,
    StageView,
    by_task,
    find_reads,
    read_tracked,
)
from torchx_kfp.execution.report.plots import draw_charts
from torchx_kfp.execution.report.timeline import draw_timeline
from torchx_kfp.execution.report.trials import find_searches, view_search
from torchx_kfp.execution.runs import resume_words, sent_words
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import describe_code

_HERE = Path(__file__).parent
#: Runs in these states cannot be resumed.
_DONE = (State.RUNNING, State.SUCCEEDED)
#: How many lines of a failed stage's log the page has, for how many stages, and how many for further ones.
LINES, FULL_LOGS, FEWER_LINES = 40, 40, 4
#: How many columns a loop's table has at most, and how many sources or readers of a stage are listed.
_MOST_COLUMNS, _MOST_LINKS = 12, 12


class SomeLinks(NamedTuple):
    """The first links of many, and how many others there are."""

    shown: list[Hyperlink]
    more: int

    @classmethod
    def to(cls, links: list[Hyperlink]) -> SomeLinks:
        return cls(links[:_MOST_LINKS], max(0, len(links) - _MOST_LINKS))


@dataclass(frozen=True)
class Entry:
    """A stage with everything that the page shows about it, except for what ``Links`` and ``Tracked`` have.

    ``inputs`` are those that are not in ``reads``, ``outputs`` those that do not repeat results.
    """

    stage: StageView
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    results: Mapping[str, Any]
    reads: Mapping[str, SomeLinks]
    read_by: SomeLinks


@dataclass(frozen=True)
class Section:
    """A task: one stage, or the iterations of a loop. ``constant`` has the inputs that all iterations share."""

    path: str
    anchor: str
    state: State | None
    note: str
    entries: list[Entry]
    is_loop: bool
    constant: Mapping[str, Any] = field(default_factory=dict)
    input_columns: Sequence[str] = ()
    result_columns: Sequence[str] = ()
    output_columns: Sequence[str] = ()
    hidden_columns: Sequence[str] = ()


def sections(run: RunView, reads: Iterable[StageRead], links: Links) -> list[Section]:
    """Return a section for each task, in the pipeline's order."""
    sources: dict[str, dict[str, list[Hyperlink]]] = {}
    readers: dict[str, dict[str, Hyperlink]] = {}
    for read in reads:
        link = links.stage(read.source) if read.source is not None else Hyperlink(read.run_id, "")
        sources.setdefault(read.stage.name, {}).setdefault(read.name, []).append(link)
        if read.source is not None:
            readers.setdefault(read.source.name, {})[read.stage.name] = links.stage(read.stage)
    groups: dict[str, list[Entry]] = {}
    for stage in run.stages:
        entry = _entry(stage, sources.get(stage.name, {}), list(readers.get(stage.name, {}).values()))
        groups.setdefault(stage.path, []).append(entry)
    return [_section(path, entries, links) for path, entries in groups.items()]


def _failures(run: RunView) -> Iterator[tuple[StageView, list[str]]]:
    """Yield the failed stages, in the pipeline's order, with the ends of their logs."""
    failed = [stage for stage in run.stages if stage.state is State.FAILED]
    for number, stage in enumerate(failed):
        try:
            yield stage, stage.result.last_lines(LINES if number < FULL_LOGS else FEWER_LINES)
        except OSError as error:
            yield stage, [f"(the log cannot be read: {error.strerror})"]


def _entry(stage: StageView, sources: Mapping[str, list[Hyperlink]], readers: list[Hyperlink]) -> Entry:
    result = stage.result
    results = dict(result.results or {})
    # Declared results are also outputs, with KFP's names.
    repeated = {"run_id": result.run_id, **{identifier(name): value for name, value in results.items()}}
    return Entry(
        stage=stage,
        inputs={name: value for name, value in result.inputs.items() if name not in sources},
        outputs={
            name: value for name, value in result.outputs.items() if name not in repeated or repeated[name] != value
        },
        results=results,
        reads={name: SomeLinks.to(found) for name, found in sources.items()},
        read_by=SomeLinks.to(readers),
    )


def _section(path: str, entries: list[Entry], links: Links) -> Section:
    state, note = summary(entry.stage for entry in entries)
    if not entries[0].stage.indices:
        return Section(path, links.section(path), state, note, entries, is_loop=False)
    ran = [entry for entry in entries if entry.stage.attempts or entry.stage.result.state.is_success]
    names = list(dict.fromkeys(name for entry in ran for name in entry.inputs))
    varies = [name for name in names if len({text(entry.inputs.get(name)) for entry in ran}) > 1]
    results = list(dict.fromkeys(name for entry in ran for name in entry.results))
    outputs = list(dict.fromkeys(name for entry in ran for name in entry.outputs))
    columns = [*varies, *results, *outputs]
    shown = set(columns[:_MOST_COLUMNS])
    return Section(
        path,
        links.section(path),
        state,
        note,
        entries,
        is_loop=True,
        constant={name: ran[0].inputs.get(name) for name in names if name not in varies},
        input_columns=[name for name in varies if name in shown],
        result_columns=[name for name in results if name in shown],
        output_columns=[name for name in outputs if name in shown],
        hidden_columns=columns[_MOST_COLUMNS:],
    )


def write_report(run: RunView, path: Path) -> None:
    """Write the page; an existing file is overwritten.

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
        path.write_bytes(render(run, path.parent).encode("utf-8", "replace"))
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
    environment.globals.update(formats=formats, describe_code=describe_code, State=State, plots=plots)
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
    in_searches = {trial.run_id for _, search in searches for trial in search.trials if trial.run_id}
    # Trials are drawn in the section of their search, all rounds together.
    others = [stage for stage in run.stages if stage.result.run_id not in in_searches]
    return {
        "run": run,
        "counts": counts_of(stage.state for stage in run.stages),
        "attempts": sum(len(stage.attempts) for stage in run.stages),
        "failures": list(_failures(run)),
        "graph": draw_graph(run),
        "timeline": draw_timeline(run),
        "searches": [view_search(run, title, search, links, tracked) for title, search in searches],
        "figures": plots.draw_plots(others),
        "charts": draw_charts(others, tracked),
        "sections": sections(run, reads, links),
        "tracked": tracked,
        "unreadable": list(dict.fromkeys([*run.unreadable, *tracked.problems])),
        "lineage": by_task(reads),
        "links": links,
        "home": links.home(),
        "resume": shlex.join(["torchx-kfp", *resume_words(run.folder, sent_words(run.arguments))])
        if run.folder and run.state not in _DONE
        else "",
    }
