"""``torchx-kfp lineage``: diagrams and very large lineages. Its trees are in ``tests/transcripts``."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.transcripts.given import declare, lineage
from torchx_kfp.entrypoints.cli.commands.lineage import dot, mermaid
from torchx_kfp.tracking import Artifact, FsspecResultTracker, Lineage, Link, Source
from torchx_kfp.tracking.lineage import add_source

#: Text that has a meaning in each of the languages.
NASTY = 'a"b\\n[x](y){z}<i>`c`#35;;|end|%%{init}\n\r\t größe -->&amp; \\" $x'


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    lineage(project / "base")
    return project / "base"


def test_diagrams_of_a_run_without_lineage(inside: Call) -> None:
    assert inside("lineage", "base", "alone", "--format", "mermaid").stdout == (
        'flowchart LR\n    n0["alone/s/1"]\n    classDef asked stroke-width:3px,font-weight:bold\n    class n0 asked\n'
    )
    assert inside("lineage", "base", "alone", "--format", "dot").stdout == (
        'digraph lineage {\n    rankdir=LR\n    node [shape=box]\n    n0 [label="alone/s/1", style=bold]\n}\n'
    )


def test_long_fan_ins_are_cut_in_trees_alone(inside: Call, project: Path) -> None:
    tracker = FsspecResultTracker(project / "base")
    trials = [f"big/train/{number:04}" for number in range(1000)]
    declare(tracker.store, "big/choose/c", {"trials": trials, "data": ["a-1/prepare/p"]})
    # Runs that are left out do not become separate trees.
    assert inside("lineage", "base", "big").stdout == inside("lineage", "base", "big/choose").stdout
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
