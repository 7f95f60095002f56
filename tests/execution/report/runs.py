"""Folders of runs: of pipelines that run, and of made-up events. Their pages, as the command writes them."""

import html.parser
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

import yaml

from tests.entrypoints.cli.conftest import invoke
from torchx_kfp.execution.runs.events import (
    Event,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StageWaiting,
    encode_event,
)
from torchx_kfp.local import RunResult, StageResult, State, Watch, run
from torchx_kfp.tracking import Run, current_run

#: Text that a page would run as code, for names, parameters, results and logs.
EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">&amp;'\"</pre>"


def record(pipeline: Any, arguments: dict[str, Any], runs: Path, **options: Any) -> tuple[Path, RunResult]:
    """Run a pipeline in the folder of runs."""
    result = run(pipeline, arguments, output_dir=runs, watch=Watch(), cache=False, **options)
    return result.folder, result


def write_events(folder: Path, events: Iterable[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}")
    append_events(folder, events)


def append_events(folder: Path, events: Iterable[Event]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps(encode_event(event)) + "\n")


def report(folder: Path, page: Path | None = None) -> Path:
    """Write the page of a run, and return its place."""
    done = invoke("report", str(folder), *(["-o", str(page)] if page else []))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.removesuffix("\n"))


class Page(html.parser.HTMLParser):
    """The elements of a page. ``of`` finds them by tag and classes, inside of one of them or of the whole page."""

    _EMPTY = frozenset(("meta", "link", "br", "wbr", "input", "img", "base", "hr"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self._tree = TreeBuilder()
        self.feed(text)
        self.root = self._tree.close()

    @classmethod
    def of_run(cls, folder: Path) -> "Page":
        return cls(report(folder).read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in self._EMPTY:
            self._tree.end(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._EMPTY:
            self._tree.end(tag)

    def handle_data(self, data: str) -> None:
        self._tree.data(data)

    def of(self, what: str, inside: Element | None = None) -> list[Element]:
        """Return the elements that ``tag.class.class`` or ``#id`` describes."""
        root = self.root if inside is None else inside
        if what.startswith("#"):
            return root.findall(f".//*[@id='{what[1:]}']")
        tag, *classes = what.split(".")
        return [it for it in root.iter(tag) if {*classes} <= {*it.get("class", "").split()}]

    def pairs(self, title: str, inside: Element | None = None) -> dict[str, str]:
        """Return the list of names and values with this title; empty if there is none."""
        for box in self.of("div.pairs", inside):
            if shown(box[0]) == title:
                names, values = self.of("dt", box), self.of("dd", box)
                return {shown(name): shown(value) for name, value in zip(names, values, strict=True)}
        return {}

    @property
    def states(self) -> dict[str, str]:
        """The states of the stages."""
        return {it.get("data-name", ""): it.get("data-state", "") for it in self.root.iter() if it.get("data-name")}

    def stage(self, path: str) -> Element:
        """Return the section of a task."""
        [found] = [it for it in self.of("details.stage") if it.get("data-path") == path]
        return found


def shown(element: Element) -> str:
    """Return the text of an element, in one line."""
    return " ".join("".join(element.itertext()).split())


def numbers(element: Element, *names: str) -> Iterator[float]:
    """Yield attributes that are numbers."""
    return (float(element.get(name, "")) for name in names)


def tracked(base: Path, run_id: str, **parents: str | list[str]) -> Run:
    """Return a stage that records under a tracker base."""
    environ = {"TORCHX_TRACKER_BASE": str(base), "TORCHX_JOB_ID": run_id}
    return current_run({**environ, "TORCHX_PARENT_RUN_IDS": json.dumps(parents)} if parents else environ)


def many_stages(count: int, path: Path) -> None:
    """Write a compiled pipeline with this many stages in five ranks; each reads two stages of the rank before.

    It does not use kfp's compiler, which would take seconds.
    """
    rank = count // 5
    tasks = {}
    for number in range(count):
        before = [f"stage-{number - rank}", f"stage-{number // rank * rank - rank + (number * 7 + 3) % rank}"]
        tasks[f"stage-{number}"] = {
            "taskInfo": {"name": f"stage-{number}"},
            "componentRef": {"name": "comp"},
            "dependentTasks": before if number >= rank else [],
        }
    spec = {
        "pipelineInfo": {"name": "many"},
        "root": {"dag": {"tasks": tasks}},
        "components": {"comp": {"executorLabel": "exec"}},
        "deploymentSpec": {"executors": {"exec": {"container": {"image": "busybox", "command": ["true"]}}}},
        "schemaVersion": "2.1.0",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(spec))


def play(
    folder: Path,
    names: Iterable[str],
    *,
    parallel: int = 8,
    seconds: Callable[[int], float] = lambda number: 1 + (number * 37 % 11) / 4,
    result: Callable[[int], dict[str, Any]] = lambda number: {},
    inputs: Callable[[int], dict[str, Any]] = lambda number: {},
    state: Callable[[int], State] = lambda number: State.SUCCEEDED,
    pipeline: str = "many",
    tracker_base: str | None = None,
) -> None:
    """Write the events of a run in which these stages have run, this many at once."""
    now = time.time() - 3600
    events: list[Event] = [RunStarted(pipeline, folder.name, folder, arguments={"seed": 1}, time=now)]
    free = [now] * parallel
    failed = False
    for number, name in enumerate(names):
        lane = min(range(parallel), key=free.__getitem__)
        begin, end = free[lane], free[lane] + seconds(number)
        free[lane] = end
        pod = name.replace("/", "-").replace("[", "-").replace("]", "").replace(",", "-") + "_1"
        task = name.partition("[")[0]
        how = state(number)
        failed |= how is State.FAILED
        events.append(StageWaiting(name, task, time=now))
        events.append(StageStarted(name, pod, 1, task, folder / pod / "log.txt", inputs(number), time=begin))
        ended = StageResult(
            name,
            task,
            how,
            exit_code=3 if how is State.FAILED else 0,
            reason="ended with exit code 3" if how is State.FAILED else "",
            duration=end - begin,
            attempts=1,
            pod_name=pod,
            log_file=folder / pod / "log.txt",
            execution_id=f"{folder.name}/{task}/{pod}",
            tracker_base=tracker_base,
            results=result(number),
            inputs=inputs(number),
            started_at=begin,
        )
        events.append(StageFinished(ended, time=end))
    events = events[:1] + sorted(events[1:], key=lambda event: event.time)
    how = State.FAILED if failed else State.SUCCEEDED
    events.append(RunFinished(folder.name, how, max(free) - now, {}, time=max(free)))
    write_events(folder, events)
