"""What a page says about a run: its states, attempts, options, links and numbers."""

# Annotations are not postponed: kfp reads them as types.

import fcntl
import json
import math
import os
import re
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.report.runs import Page, play, record, report, shown, write_events
from tests.searches import play_search, tell
from torchx_kfp import task_from_app
from torchx_kfp.local import (
    RunFinished,
    RunStarted,
    StageFinished,
    StageResult,
    StageRetried,
    StageStarted,
    StageWaiting,
    State,
)
from torchx_kfp.tracking import FsspecResultTracker


def test_a_retried_run_is_one_run_and_the_time_between_is_left_out(tmp_path: Path) -> None:
    events = [
        RunStarted("p", "run-1", tmp_path, time=100.0),
        StageStarted("b", "b_1", 1, "b", time=103.0),
        StageRetried("b", 1, "ended with exit code 1", 0.0, time=104.0),
        StageStarted("b", "b_2", 2, "b", time=104.0),
        StageWaiting("c", "c", time=104.5),
        RunStarted("p", "run-1", tmp_path, retried=True, time=5000.0),
        StageStarted("b", "b_3", 1, "b", time=5001.0),
        StageFinished(StageResult("b", "b", State.SUCCEEDED, attempts=1, duration=1.0), time=5002.0),
        RunFinished("run-1", State.SUCCEEDED, 2.0, time=5002.5),
    ]
    write_events(tmp_path, events)
    page = Page.of_run(tmp_path)
    assert "6.5s in 2 sessions" in shown(page.of("section.facts")[0])
    attempts = page.pairs("Execution", page.stage("b"))["attempts"]
    assert re.findall("failed|interrupted|succeeded", attempts) == ["failed", "interrupted", "succeeded"]
    assert [it.get("style") for it in page.of("i.retried")] == [f"left:{round(100 * 4.5 / 7, 2)}%"]
    ends = [left + width for left, width, _ in bars(page, "b")]
    assert ends == pytest.approx([100 * 4 / 7, 100 * 4.5 / 7, 100 * 6.5 / 7], abs=0.01)


def bars(page: Page, path: str) -> list[tuple[float, float, int]]:
    """Return the place, the width and the lane of each bar of a task in the timeline."""
    [row] = [it for it in page.of("div.row") if it.get("data-path") == path]
    styles = (it.get("style", "") for it in page.of("i", row))
    found = (re.fullmatch(r"left:([\d.]+)%;width:([\d.]+)%(?:;--lane:(\d+))?", style) for style in styles)
    return [(float(it[1]), float(it[2]), int(it[3] or 0)) for it in found if it]


def test_the_iterations_of_a_loop_share_a_row_of_lanes_without_overlaps(tmp_path: Path) -> None:
    play(tmp_path, [f"train[{number}]" for number in range(200)], parallel=7)
    found = sorted(bars(Page.of_run(tmp_path), "train"), key=lambda it: (it[2], it[0]))
    assert (len(found), {lane for *_, lane in found}) == (200, {*range(7)})
    for one, other in pairwise(found):
        assert one[2] != other[2] or one[0] + one[1] <= other[0] + 0.002
    assert max(left + width for left, width, _ in found) == pytest.approx(100, abs=0.01)


def test_a_moved_folder_has_its_logs_where_it_is_now(tmp_path: Path) -> None:
    play(tmp_path / "old", ["a"])
    (tmp_path / "old/a_1").mkdir()
    (tmp_path / "old/a_1/log.txt").write_text("said")
    (tmp_path / "old").rename(tmp_path / "new")
    page = Page.of_run(tmp_path / "new")
    assert "a_1/log.txt" in {it.get("href") for it in page.of("a", page.stage("a"))}


@pytest.mark.parametrize("place", ["beside", "elsewhere"])
def test_links_lead_to_logs_and_artifacts_from_wherever_the_page_is(failed: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "some where").mkdir()
    written = report(failed, tmp_path / "some where/page.html" if place == "elsewhere" else None)
    page = Page(written.read_text())
    loaded = ("src", "srcset", "data", "action", "poster")
    assert not [it.attrib for it in page.root.iter() if {*it.keys()} & {*loaded}]
    ids = [it.get("id") for it in page.root.iter() if it.get("id")]
    assert len(ids) == len({*ids})
    hrefs = [it.get("href", "") for it in page.of("a") if it.get("href")]
    assert {href[1:] for href in hrefs if href.startswith("#")} <= {*ids}
    files = {(written.parent / unquote(href)).resolve() for href in hrefs if not href.startswith("#")}
    assert all(file.exists() for file in files)
    logs = {path.resolve() for path in failed.glob("*/log.txt")}
    assert len(logs) == 4
    assert logs < files


def test_a_page_says_how_the_run_ended_how_it_goes_on_and_how_it_ran(failed: Path, tmp_path: Path) -> None:
    text = report(failed).read_text()
    for fact in ("1 failed stage", "ended with exit code 3", f"torchx-kfp retry {failed.name} --output-dir "):
        assert fact in text
    page = Page(text)
    assert page.pairs("Options")["docker"] == "false"
    for internal in ("null", "[]", "grace", "python_path", "named", "max_items"):
        assert internal not in shown(page.of("#run")[0])
    play(tmp_path / "done", ["a"])
    assert "torchx-kfp retry" not in report(tmp_path / "done").read_text()


def test_options_have_the_names_of_the_run_function(tmp_path: Path) -> None:
    play(tmp_path, ["a"])
    given = {"docker": True, "mounts": ["/d:/d:ro"], "timeout": None, "cache": False, "grace": 3.0}
    (tmp_path / "run.json").write_text(json.dumps({"options": given}))
    assert Page.of_run(tmp_path).pairs("Options") == {"docker": "true", "mounts": '["/d:/d:ro"]', "cache": "false"}


def test_outputs_that_repeat_results_are_left_out(tmp_path: Path) -> None:
    outputs = {"run_id": "run-1/train/t0", "l2norm_mean": 1.25, "loss": 0.5, "epochs": 4}
    results = {"l2norm/mean": 1.25, "loss": 0.5, "epochs": 3}
    stage = StageResult(
        "train", "train", State.SUCCEEDED, execution_id="run-1/train/t0", results=results, outputs=outputs
    )
    write_events(tmp_path, [RunStarted("p", "run-1", tmp_path), StageFinished(stage)])
    assert Page.of_run(tmp_path).pairs("Outputs") == {"epochs": "4"}


#: Values and what a page shows of them.
LEGIBLE = {"yes": (True, "true"), "none": (None, "null"), "int": (3, "3"), "sum": (0.1 + 0.2, "0.3")}
LEGIBLE |= {"inf": (math.inf, "inf"), "text": ("a b", "a b"), "json": ({"a": [1]}, '{"a": [1]}')}


def test_values_are_legible_and_states_have_colours(tmp_path: Path) -> None:
    play(tmp_path, ["a"], inputs=lambda number: {name: given for name, (given, _) in LEGIBLE.items()})
    page = Page.of_run(tmp_path)
    assert page.pairs("Parameters") == {name: expected for name, (_, expected) in LEGIBLE.items()}
    styles = shown(page.of("style")[0])
    for state in State:
        assert f".{state.css} {{ --c: var(--{state.color}); }}" in styles
        assert styles.count(f" --{state.color}: #") == 3, "in light and dark, and on paper"


def test_the_timeline_of_a_run_in_progress_ends_now(tmp_path: Path) -> None:
    now = time.time()
    write_events(tmp_path, [RunStarted("p", "run-1", time=now - 100), StageStarted("a", "a_1", 1, "a", time=now - 80)])
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [(left, width, _)] = bars(Page.of_run(tmp_path), "a")
    assert (left, left + width) == (pytest.approx(20, abs=8), pytest.approx(100, abs=0.01))


@pytest.mark.parametrize("state", ["running", "interrupted", "canceled"])
def test_a_page_of_a_run_without_an_end_says_so_with_the_time(tmp_path: Path, state: str) -> None:
    play(tmp_path, ["a", "b"])
    events = (tmp_path / "events.jsonl").read_text().splitlines()
    end = json.loads(events.pop())
    # The runner of an interrupted run may have been killed while it wrote.
    events.append(json.dumps({**end, "state": "canceled"}) if state == "canceled" else '{"event": "stage_fin')
    (tmp_path / "events.jsonl").write_text("\n".join(events) + "\n" * (state == "canceled"))
    before = time.time() // 60 * 60
    with (tmp_path / "lock").open("w") as lock:
        if state == "running":
            fcntl.flock(lock, fcntl.LOCK_EX)
        page = Page.of_run(tmp_path)
    said = {
        "running": "The run was still running when this page was written, at ",
        "interrupted": "The run was interrupted: its runner was killed",
        "canceled": "The run was canceled before it had finished.",
    }
    [notice] = map(shown, page.of("p.notice"))
    assert notice.startswith(said[state])
    assert bool(page.of("p.retry")) == (state != "running")
    minutes = {time.strftime("%Y-%m-%d %H:%M", time.localtime(when)) for when in (before, before + 60)}
    assert any(minute in shown(page.of("footer")[0]) for minute in minutes)


@pytest.mark.lowest
def test_a_page_of_a_pipeline_that_cannot_be_read_has_no_graph(tmp_path: Path) -> None:
    play(tmp_path, ["a"])
    (tmp_path / "pipeline.yaml").write_text("nothing: [")
    page = Page.of_run(tmp_path)
    assert (len(page.of("#graph")), len(page.of("#timeline"))) == (0, 1)


TRAIN = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
rate, width = float(sys.argv[1]), int(sys.argv[2])
run.add_metadata(optimizer="adam", rate=rate)
for step in range(50):
    run.log(step, {"train/loss": 1 / (1 + rate * step)})
run.put(width=width)
"""


def training(name: str, *args: str) -> AppDef:
    return AppDef(name, roles=[Role(name, image="python", entrypoint="python", args=["-c", TRAIN, *args])])


@dsl.container_component
def theirs(limit: float, item: str, stage: str):
    return dsl.ContainerSpec(image="busybox", command=["true"], args=[limit, item, stage])


@dsl.pipeline(name="named")
def named(tracker_base: str, width: int = 3, threshold: float = 0.5, rates: list = [0.1, 0.5]):  # noqa: B006 (KFP takes the text of defaults)
    with dsl.ParallelFor([{"lr": 0.1}, {"lr": 0.2}]) as trial:
        fields = task_from_app(training("fields", f"{trial.lr}", f"{width}"), tracker_base=tracker_base)
        task_from_app(training("again", "0.5", f"{width}"), tracker_base=tracker_base, reads=fields)
    with dsl.ParallelFor(rates) as rate:
        task_from_app(training("train", f"{rate}", f"{width}"), tracker_base=tracker_base)
    theirs(limit=threshold, item="x", stage="y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    found, result = record(named, {"tracker_base": str(runs / "results")}, runs)
    assert result.state is State.SUCCEEDED
    return found


def test_inputs_have_the_names_of_the_pipeline(folder: Path) -> None:
    page = Page.of_run(folder)
    constant = {"width": "3", "tracker_base": str(folder.parent / "results")}
    for path, columns in {"fields": {"lr": "0.2"}, "train": {"item of rates": "0.5"}, "again": {}}.items():
        section = page.stage(path)
        assert page.pairs("Parameters of all iterations", section) == constant
        names = [shown(it) for it in page.of("th", section) if it.get("scope") == "col"]
        cells = dict(zip(names, map(shown, page.of("tr", section)[-1]), strict=False))
        assert {name: cells[name] for name in columns} == columns
    assert "fields" in page.pairs("Lineage", page.stage("again")).popitem()[0]
    # Names that a user has given stay.
    assert page.pairs("Parameters", page.stage("theirs")) == {"limit": "0.5", "item": "x", "stage": "y"}


def test_where_the_stages_ran_and_what_their_steps_were(folder: Path) -> None:
    page = Page.of_run(folder)
    assert report(folder).read_text().count(f"<dt>ran on</dt><dd><code>{os.uname().nodename}</code>") == 6
    captions = [shown(it) for it in page.of("figcaption", page.of("#figures")[0])]
    assert captions == ["train/loss of fields", "train/loss of again", "train/loss of train"]
    second = page.of("td.more", page.stage("train"))[1]
    assert page.pairs("Metrics of steps", second) == {"train/loss": "0.0392157 at 49, min 0.0392157, max 1"}
    assert page.pairs("Metadata", second) == {"optimizer": "adam", "rate": "0.5"}


def test_a_tracker_that_is_gone_leaves_a_page_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", "gone://base")
    play(tmp_path, ["a"], tracker_base="gone://base")
    page = Page.of_run(tmp_path)
    facts = "Metrics of steps, searches and metadata could not be read: The tracker base 'gone://base'"
    assert [facts in shown(it) for it in page.of("p.notice")] == [True]


def test_a_search_that_still_runs(tmp_path: Path) -> None:
    play_search(tmp_path / "runs/run-1", ended=1)
    page = report(tmp_path / "runs/run-1").read_text()
    assert 'id="figures"' not in page, "trials are drawn in the section of their search"
    assert "Round 2 of 3, with 4 trials, did not finish." in page
    assert page.count("asked for</span>") == 4
    assert "<dt>rounds</dt><dd>1 of 3</dd>" in page


def test_what_a_failed_trial_recorded_is_not_drawn(tmp_path: Path) -> None:
    play_search(tmp_path / "runs/run-1", rounds=1)
    store = FsspecResultTracker(tmp_path / "runs/results").store
    [_, last] = [file.key for file in store.list_files(".torchx_kfp/runs/run-1") if file.key.endswith(".search")]
    entry = json.loads(store.read(last) or b"")
    entry["search"]["trials"][0] |= {"failed": True, "results": {"loss": -5.0}}
    store.write(last, json.dumps(entry).encode())
    page = Page.of_run(tmp_path / "runs/run-1")
    note = shown(page.of("p.caption", page.of("figure")[0])[0])
    assert ("-5" in note, "1 trial without a finite number" in note) == (False, True)
    assert "-5" in shown(page.of("table", page.of("#search0")[0])[0])


def test_two_searches_of_one_name_are_two_sections(tmp_path: Path) -> None:
    play_search(tmp_path / "runs/run-1", rounds=1)
    other = tell("search", [({"lr": 0.5}, {"loss": 7.0})], run_id="earlier/trial/0")
    store = FsspecResultTracker(tmp_path / "runs/results").store
    entries = [file.key for file in store.list_files(".torchx_kfp/runs/run-1") if file.key.endswith(".search")]
    best = json.loads(store.read(entries[1]) or b"")["search"]
    for entry, search in zip(entries, (other, {**best, "before": None}), strict=True):
        store.write(entry, json.dumps({"search": search}).encode())
    page = Page.of_run(tmp_path / "runs/run-1")
    titles = [shown(page.of("h2", it)[0]) for it in page.of("section.search")]
    assert titles == ["Search search (ask-1)", "Search search (best)"]
    assert "earlier/trial/0" in shown(page.of("#search0")[0]), "a trial that is not in this run"
