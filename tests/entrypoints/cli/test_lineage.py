"""``torchx-kfp lineage`` as a user calls it."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from torchx_kfp.entrypoints.cli.commands.lineage import dot, mermaid
from torchx_kfp.tracking import Artifact, FsspecResultTracker, Lineage, Link, Source
from torchx_kfp.tracking.lineage import SOURCES, Start, add_source, encode_sources, record_start
from torchx_kfp.tracking.statements import add_artifact
from torchx_kfp.tracking.store import Store

#: Text that has a meaning in each of the languages.
NASTY = 'a"b\\n[x](y){z}<i>`c`#35;;|end|%%{init}\n\r\t größe -->&amp; \\" $x'


def declare(store: Store, run_id: str, parents: dict[str, str | list[str]]) -> None:
    """Record the sources that a stage records at its start, but not the start itself."""
    found = {alias: [ids] if isinstance(ids, str) else ids for alias, ids in parents.items()}
    sources = [Source(source, alias=alias) for alias, ids in found.items() for source in ids]
    SOURCES.add(store, run_id, encode_sources(sources), "sources", "0-reads")


def fill(base: str | Path) -> FsspecResultTracker:
    tracker = FsspecResultTracker(base)
    store = tracker.store
    tracker["a-1/prepare/p"] = {"rows": 1000}
    add_source(store, "a-1/prepare/p", Source("s3://datasets/digits", "raw"))
    for number in range(2):
        tracker[f"a-1/train/t{number}"] = {"accuracy": 0.5 + number / 4}
        add_artifact(store, f"a-1/train/t{number}", "model", f"s3://bucket/{'long/' * 9}{number}.pt", {"epochs": 3})
        declare(store, f"a-1/train/t{number}", {"prepare": "a-1/prepare/p"})
    tracker["a-1/choose/c"] = {"best": "a-1/train/t1"}
    declare(store, "a-1/choose/c", {"trials": ["a-1/train/t0", "a-1/train/t1"], "data": "a-1/prepare/p"})
    tracker["b-1/deploy/d"] = {"ok": True}
    declare(store, "b-1/deploy/d", {"model": "a-1/choose/c"})
    tracker["alone/s/1"] = {"loss": 0.25}
    declare(store, "ring/x/1", {"y": "ring/y/1"})
    declare(store, "ring/y/1", {"x": "ring/x/1"})
    return tracker


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    fill(project / "base")
    return project / "base"


TREES = """\
Made from
a-1/choose/c  best=a-1/train/t1
├── trials: a-1/train/t0  accuracy=0.5  (model s3://bucket/long/long/long/long/long/long/long/long/long/0.pt)
│   └── prepare: a-1/prepare/p  rows=1000
│       └── s3://datasets/digits  [raw]
├── trials: a-1/train/t1  accuracy=0.75  (model s3://bucket/long/long/long/long/long/long/long/long/long/1.pt)
│   └── prepare: a-1/prepare/p  (shown above)
└── data: a-1/prepare/p  (shown above)

Used by
a-1/choose/c  best=a-1/train/t1
└── model: b-1/deploy/d  ok=true
"""


@pytest.mark.parametrize("run", ["a-1/choose/c", "a-1/choose", "a-1/c", "a-1", "a-1/"])
def test_what_a_run_was_made_of_and_what_of_it(run: str, inside: Call) -> None:
    """A pipeline run means all of its stages. Here, they are connected, and each is shown once."""
    done = inside("lineage", "base", run)
    assert (done.returncode, done.stdout, done.stderr) == (0, TREES, "")


def test_the_ends_of_a_lineage(inside: Call) -> None:
    assert inside("lineage", "base", "b-1").stdout.splitlines()[:3] == [
        "Made from",
        "b-1/deploy/d  ok=true",
        "└── model: a-1/choose/c  best=a-1/train/t1",
    ]
    # A data set is not a run, but runs use it.
    assert inside("lineage", "base", "s3://datasets/digits").stdout.splitlines()[:4] == [
        "Used by",
        "s3://datasets/digits",
        "└── a-1/prepare/p  rows=1000  [raw]",
        "    ├── data: a-1/choose/c  best=a-1/train/t1",
    ]


def test_a_whole_name_is_no_beginning(inside: Call, project: Path) -> None:
    FsspecResultTracker(project / "base")["a-10/s/1"] = {"loss": 1}
    assert inside("lineage", "base", "a-1").stdout == TREES


def test_circles_end(inside: Call) -> None:
    assert inside("lineage", "base", "ring").stdout == (
        "Made from\nring/x/1\n└── y: ring/y/1\n    └── x: ring/x/1  (shown above)\n"
    )
    assert inside("lineage", "base", "ring/y").stdout.count("ring/y/1") == 4


def test_a_run_without_lineage(inside: Call) -> None:
    sentence = (
        "No lineage is recorded for 'alone'. "
        "Stages record it if they call current_run() or torchx.tracker.AppRun.run_from_env().\n"
    )
    done = inside("lineage", "base", "alone")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alone/s/1  loss=0.25\n", sentence)
    done = inside("lineage", "base", "alone", "--format", "json")
    assert json.loads(done.stdout) == {
        "run_ids": ["alone/s/1"],
        "nodes": [{"run_id": "alone/s/1", "role": "asked", "results": {"loss": 0.25}, "started": None, "code": []}],
        "links": [],
    }
    assert done.stderr == sentence
    assert inside("lineage", "base", "alone", "--format", "mermaid").stdout == (
        'flowchart LR\n    n0["alone/s/1"]\n    classDef asked stroke-width:3px,font-weight:bold\n    class n0 asked\n'
    )
    assert inside("lineage", "base", "alone", "--format", "dot").stdout == (
        'digraph lineage {\n    rankdir=LR\n    node [shape=box]\n    n0 [label="alone/s/1", style=bold]\n}\n'
    )


def test_long_fan_ins_are_cut_in_trees_alone(inside: Call, project: Path) -> None:
    tracker = FsspecResultTracker(project / "base")
    trials = [f"big/train/{number:04}" for number in range(1000)]
    declare(tracker.store, "big/choose/c", {"trials": trials, "data": "a-1/prepare/p"})
    shown = inside("lineage", "base", "big/choose").stdout.splitlines()
    assert shown[21:24] == [
        "├── trials: big/train/0019",
        "├── ... and 980 more of trials; --format json shows all",
        "└── data: a-1/prepare/p  rows=1000",
    ]
    assert len(shown) == 25
    # Runs that are left out do not become separate trees.
    assert inside("lineage", "base", "big").stdout.splitlines() == shown
    assert len(json.loads(inside("lineage", "base", "big", "--format", "json").stdout)["links"]) == 1002
    assert inside("lineage", "base", "big", "--format", "dot").stdout.count(" -> ") == 1002
    assert inside("lineage", "base", "big", "--format", "mermaid").stdout.count("-->") == 1002


def test_fan_ins_of_fan_ins_and_long_chains(inside: Call, terminal: Callable[..., str], project: Path) -> None:
    store = FsspecResultTracker(project / "base").store
    for level in range(1, 300):
        declare(store, f"deep/s{level}/1", {"before": [f"deep/s{level - 1}/{number}" for number in range(3)]})
        add_source(store, f"deep/s{level}/1", Source(f"deep/s{level - 1}/1"))
    shown = inside("lineage", "base", "deep/s299/1").stdout.splitlines()
    assert len(shown) < 120
    assert sum("... and more; --format json shows all" in line for line in shown) == 1
    assert max(map(len, terminal(80, "lineage", "base", "deep/s299/1", NO_COLOR="1").splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 200])
def test_trees_fit_the_terminal(width: int, terminal: Callable[..., str]) -> None:
    shown = terminal(width, "lineage", "base", "a-1", NO_COLOR="1")
    assert max(map(len, shown.splitlines())) <= width
    if width == 200:
        # Paths are cut, and the requested run is shown once.
        narrow = TREES.replace("s3://bucket/long/long/long/", "…long/")
        assert shown == re.sub(r"(── \w+: )a-1/", r"\1…/", narrow)
    assert terminal(200, "lineage", "base", "a-1").startswith("\x1b[1mMade from\x1b[0m\n")


def test_json_has_all(inside: Call) -> None:
    shown = json.loads(inside("lineage", "base", "a-1/choose", "--format", "json").stdout)
    assert shown["run_ids"] == ["a-1/choose/c"]
    assert {node["run_id"]: node["role"] for node in shown["nodes"]} == {
        "s3://datasets/digits": "ancestor",
        "a-1/prepare/p": "ancestor",
        "a-1/train/t0": "ancestor",
        "a-1/train/t1": "ancestor",
        "a-1/choose/c": "asked",
        "b-1/deploy/d": "descendant",
    }
    assert {
        "source": "a-1/train/t0",
        "run_id": "a-1/choose/c",
        "alias": "trials",
        "artifacts": [
            {"name": "model", "path": f"s3://bucket/{'long/' * 9}0.pt", "metadata": {"epochs": 3}, "stored": None}
        ],
        "named": False,
    } in shown["links"]
    assert len(shown["links"]) == 7


def nasty() -> Lineage:
    links = (
        Link("subgraph", NASTY, 'alias "q"|', (Artifact('m|"', NASTY * 3),)),
        Link(NASTY, "click", "end", ()),
        Link("class", "end/x/1", None, ()),
    )
    return Lineage(("end/x/1", NASTY), ("subgraph", "class"), ("x--y", "click"), links)


def test_mermaid_means_nothing_but_text() -> None:
    """Inside quotes, only letters and Mermaid's own entities are left. Mermaid's parser (11.x) accepts this."""
    lines = mermaid(nasty()).splitlines()
    assert lines[0] == "flowchart LR"
    for line in lines[1:-2]:
        node = re.fullmatch(r'    n\d+\["([^"]+)"\]', line)
        edge = re.fullmatch(r'    n\d+ -->(?:\|"([^"]+)"\|)? n\d+', line)
        text = (node or edge)[1] or "" if node or edge else "<neither>"
        assert not set(re.sub(r"#\d+;", "", text)) & set("<>`#;{}|&\\$\"'\n\r\t"), line
    assert 'n0["class"]' in lines[1]
    assert lines[-1] == "    class n2,n3 asked"
    encoded = re.search(r'n3\["(.*)"\]', mermaid(nasty()))
    assert encoded
    assert re.sub(r"#(\d+);", lambda found: chr(int(found[1])), encoded[1]) == NASTY


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it(inside: Call) -> None:
    for text in (dot(nasty()), inside("lineage", "base", "a-1", "--format", "dot").stdout):
        done = subprocess.run(["dot", "-Tjson"], input=text, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        labels = [item["label"] for item in json.loads(done.stdout)["objects"]]
        assert len(labels) == 6


def test_dot_means_nothing_but_text() -> None:
    lines = dot(nasty()).splitlines()
    quoted = r'"((?:[^"\\]|\\[\\"])*)"'
    for line in lines[3:-1]:
        assert re.fullmatch(rf"    n\d+( -> n\d+)?( \[label={quoted}(, style=bold)?\])?", line), line
    label = re.search(rf"n3 \[label={quoted}", dot(nasty()))
    assert label
    assert re.sub(r"\\(.)", r"\1", label[1]).replace("&amp;", "&") == re.sub(r"[\n\r\t]", " ", NASTY)


REFUSED = {
    ("base",): (2, "Error: Missing argument 'RUN'.\n"),
    ("base", "nope"): (
        2,
        "Error: Nothing is recorded for 'nope' under 'base'. Runs there: a-1, alone, b-1, ring, s3://datasets/",
    ),
    ("base", "a"): (2, "Error: 'a' is the beginning of 2 runs under 'base': a-1, alone. Give a longer part of it.\n"),
    ("nowhere", "a"): (2, "Error: There is no directory 'nowhere'."),
    ("empty", "a"): (
        2,
        "Error: There are no results under 'empty'. Is it the tracker base that the pipeline ran with?",
    ),
    ("base", "a-1", "--format", "svg"): (2, "'svg' is not one of 'tree', 'mermaid', 'dot', 'json'."),
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refused(words: tuple[str, ...], inside: Call, project: Path) -> None:
    (project / "empty").mkdir()
    done = inside("lineage", *words)
    code, text = REFUSED[words]
    assert text in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


def test_what_is_no_result_is_left_out(call: Call, base: Path) -> None:
    (base / "a-1/prepare/p").write_text("half")
    done = call("lineage", "base", "a-1/prepare/p")
    assert done.stdout.startswith("Made from\na-1/prepare/p\n└── s3://datasets/digits  [raw]\n")
    assert done.stderr.startswith(f"Left out: {base}/a-1/prepare/p is not valid JSON")
    assert done.returncode == 0


def test_on_s3(call: Call, s3_base: str) -> None:
    fill(s3_base)
    done = call("lineage", s3_base, "a-1")
    assert (done.returncode, done.stdout, done.stderr) == (0, TREES, "")


def test_when_and_where_it_started(inside: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    store = FsspecResultTracker(project / "base").store
    record_start(store, "c-1/use/u", {"train": "c-1/train/t"}, Start(1e9, "node-3", "repo/use:1"))
    record_start(store, "c-1/train/t", {}, Start(1e9 - 60, "node-2"))
    assert inside("lineage", "base", "c-1/use").stdout.splitlines() == [
        "Made from",
        "c-1/use/u",
        "├── started 2001-09-09 01:46:40 +0000 on node-3 in repo/use:1",
        "└── train: c-1/train/t",
    ]
    nodes = json.loads(inside("lineage", "base", "c-1/use", "--format", "json").stdout)["nodes"]
    assert {node["run_id"]: node["started"] for node in nodes} == {
        "c-1/train/t": {"time": 999999940.0, "host": "node-2", "image": None},
        "c-1/use/u": {"time": 1e9, "host": "node-3", "image": "repo/use:1"},
    }
