"""``torchx-kfp ui``: what its pages show, whom they answer, and what they do not read. ``test_browser`` opens them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.entrypoints.cli.pages import Served, served
from tests.execution.host.calling import wait_until
from tests.execution.report.runs import EVIL, Page, append_events, play, tracked
from tests.fake_kfp import KfpHost
from tests.programs import Program
from torchx_kfp.execution.runs.events import RunFinished, RunStarted
from torchx_kfp.local import State

TRAINS = ["train[0]", "train[1]", "choose"]


@pytest.fixture
def runs(call: Call, project: Path) -> list[str]:
    """Two runs here with results, the newer one failed, and one that has only records."""
    names = ["digits-20260101-120000-00000a", "digits-20260102-120000-00000b"]
    for number, name in enumerate(names):
        play(
            project / "local_outputs" / name,
            TRAINS,
            pipeline="digits",
            result=lambda stage, number=number: {"best": "x y"} if stage == 2 else {"loss": (stage + 1) / (number + 1)},
            state=lambda stage, number=number: State.FAILED if (number, stage) == (1, 2) else State.SUCCEEDED,
            tracker_base=str(project / "results"),
        )
        tracked(project / "results", f"{name}/train/train-0_1").put(loss=1 / (number + 1))
    tracked(project / "results", "other/fit/fit_1").put(f1=0.5)
    return names


@pytest.fixture
def page(call: Program, runs: list[str]) -> Iterator[Served]:
    with served(call, "--tracker-base", "results") as found:
        yield found


def listed(page: Served, **query: str | list[str]) -> list[str]:
    return [row["run"] for row in page.get(**query).rows]


def test_runs_are_listed_with_results(page: Served, runs: list[str]) -> None:
    only_records, newer, older = page.get().rows
    assert only_records == dict.fromkeys(newer, "") | {
        "run": "other",
        "started": only_records["started"],
        "fitf1": "0.5",
    }
    assert (newer["run"], newer["state"], newer["done"]) == (runs[1], "✗failed", "2, 1 failed")
    assert (newer["trainloss"], older["trainloss"]) == ("0.5 ... 1.0 (2)", "1.0 ... 2.0 (2)")
    assert (older["state"], older["choosebest"]) == ("✓succeeded", "'x y'")
    assert older["took"].endswith("s")


def test_the_list_is_filtered_and_sorted(page: Served, runs: list[str]) -> None:
    older, newer = runs
    assert listed(page, name="DIGITS") == [newer, older]
    assert listed(page, state="failed") == [newer]
    assert listed(page, where="loss < 1") == [newer]
    assert listed(page, where=["train/loss < 1", "state == succeeded"]) == []
    assert listed(page, where='best == "x y"', sort="train/loss") == [newer, older]
    assert listed(page, where="loss > 0", sort="-loss") == [older, newer]
    assert listed(page, sort="run") == [older, newer, "other"]
    [problem] = page.get(where="losss < 1").notices
    assert problem == "No run has a value named 'losss'. Did you mean 'loss'?"
    assert page.get(where="nonsense").notices[0].startswith("--where 'nonsense' is not NAME OPERATOR VALUE")
    headings = Page(page.get(sort="-train/loss", where="loss > 0").text).of("a.by")
    assert [it.get("href") for it in headings] == ["?where=loss+%3E+0&sort=train%2Floss"]


def test_what_changes_is_read_again(page: Served, runs: list[str], project: Path) -> None:
    folder, base = project / "local_outputs" / runs[1], project / "results"
    for file in base.rglob("*"):
        os.utime(file, (1e9, 1e9))  # long ago
    assert page.get(state="succeeded").keys != []
    append_events(folder, [RunStarted("digits", runs[1], folder), RunFinished(runs[1], State.CANCELED, 1.0, {})])
    tracked(base, "other/fit/fit_1").put(f1=0.75)
    (base / "torn" / "fit").mkdir(parents=True)
    (base / "torn" / "fit" / "fit_1").write_text("{")
    wait_until(lambda: listed(page, state="canceled") == [runs[1]] and page.get(name="other").notices)
    found = page.get(name="other")
    assert [row["fitf1"] for row in found.rows] == ["0.75"]
    assert found.notices[0].startswith("Left out: ")


def test_chosen_runs_are_compared_as_the_command_does(page: Served, runs: list[str], call: Call) -> None:
    keys = page.get(name="digits").keys
    found = page.get("compare", run=keys).rows
    assert [(row["stage"], row["name"], row[runs[1]], row[runs[0]], row["difference"]) for row in found] == [
        ("", "seed (parameter)", "1", "1", "0"),
        ("train", "loss", "0.5", "1.0", "+0.5"),
    ]
    assert [row["name"] for row in page.get("compare", run=keys, changed="1").rows] == ["loss"]
    command = call("compare", "--tracker-base", "results", *reversed(runs)).stdout.splitlines()[2:]
    assert [line.split() for line in command] == [" ".join(row.values()).split() for row in found]
    assert page.get("compare", run=keys[:1] * 2).notices == ["Choose 2 to 20 runs to compare."]
    others = page.get("compare", run=[keys[0], *page.get(name="other").keys]).rows
    assert ("", "f1", "", "0.5") in [tuple(row.values())[:4] for row in others]


def test_each_run_has_its_report_without_links_to_files(page: Served, runs: list[str]) -> None:
    [key] = page.get(state="failed").keys
    report = Page(page.get("report", run=key).text)
    assert report.states == {"train[0]": "succeeded", "train[1]": "succeeded", "choose": "failed"}
    assert {it.get("href", "")[:1] for it in report.of("a")} == {"#"}
    assert page.get("report", run=page.get(name="other").keys[0]).notices == [
        "Only records of other are known, not the run itself."
    ]


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("{token}/", "HEAD", {}, 200),
        ("{token}/", "GET", {"Host": "localhost"}, 200),
        ("{token}/", "GET", {"Host": "evil.example:8765"}, 403),
        ("{token}/", "GET", {"Host": "127.0.0.1.evil.example"}, 403),
        ("{token}/", "GET", {"Host": ""}, 403),
        ("", "GET", {}, 403),
        ("{token}x/", "GET", {}, 403),
        ("%00%ff/", "GET", {}, 403),
        ("x/?token={token}", "GET", {"Referer": "http://127.0.0.1/{token}/"}, 403),
        ("{token}/", "POST", {}, 405),
        ("{token}/", "DELETE", {}, 405),
        ("{token}/../../../etc/passwd", "GET", {}, 404),
        ("{token}/page.html", "GET", {}, 404),
        ("{token}", "GET", {}, 404),
        ("{token}/report?run=../../etc/passwd", "GET", {}, 404),
        ("{token}/report?run=digits-20260101-120000-00000a", "GET", {}, 404),
    ],
)
def test_only_the_address_that_was_printed_is_answered(
    page: Served, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    token = urlsplit(page.url).path.strip("/")
    answer = page.ask("/" + path.format(token=token), method, **headers)
    assert answer.status == status
    assert status == 200 or ("<" not in answer.text and token not in answer.text)
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert urlsplit(page.url).hostname == "127.0.0.1"
    assert len(token) >= 32


def test_nothing_is_written(page: Served, project: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in project.rglob("*")}

    before = files()
    keys = page.get().keys
    page.get("compare", run=keys)
    page.get("report", run=keys[-1])
    assert files() == before


def test_hostile_names_are_text_and_lead_nowhere(call: Program, project: Path) -> None:
    evil = f"{EVIL}\x1b]0;x\x07\u202e"
    text = {"result": lambda number: {evil: evil}, "inputs": lambda number: {evil: evil}}
    for name in ("a", "b" + evil.replace("/", "\\"), "c..\udcff"):
        play(project / "local_outputs" / name, [f"train{evil}"], pipeline=evil, **text)
    tracked(project / "results", "a/fit/fit_1").put(x=evil)
    (project / "local_outputs" / "d").mkdir()
    (project / "local_outputs" / "d" / "events.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(project / "local_outputs" / "d" / "run.json")
    (project / "local_outputs" / "e").mkdir()
    os.mkfifo(project / "local_outputs" / "e" / "events.jsonl")
    with served(call, "--tracker-base", "results") as page:
        answer, refused = page.get(sort="run"), page.get(name=EVIL, where=[EVIL], state=EVIL)
        assert (len(answer.keys), len(refused.keys), len(refused.notices)) == (3, 0, 3)
        pages = [answer, refused, page.get("report", run=answer.keys[1])]
        pages += [page.get("compare", run=[key, answer.keys[0]]) for key in answer.keys[1:]]
        for found in pages:
            tree = Page(found.text)
            assert len(tree.of("script")) + len(tree.of("img")) == (found.text.count("<footer>"))
            assert "\x1b" not in found.text
            assert "\u202e" not in found.text
        assert all("document.title" in found.text for found in pages[:3])
        assert sum("Left out" in it for it in answer.notices) == 2


@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_a_server_that_only_a_run_names_is_not_asked(call: Program, project: Path, chain: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"{chain}http://127.0.0.1:{server.getsockname()[1]}/x"
        for name in ("one", "two"):
            play(project / "local_outputs" / name, ["train"], tracker_base=base)
        with served(call) as page:
            keys = page.get().keys
            for found in (page.get("compare", run=keys), page.get("report", run=keys[0])):
                assert any("only the run names it" in it for it in found.notices), found
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_only_a_run_names_is_read_if_it_has_records_of_runs(
    call: Program, project: Path, tmp_path: Path, scheme: str
) -> None:
    """The folder of a run may be somebody else's."""
    (tmp_path / "private" / "a" / "b").mkdir(parents=True)
    (tmp_path / "private" / "a" / "b" / "c").write_text('{"salary": 5}')
    play(project / "local_outputs" / "one", ["train"], tracker_base=f"{scheme}{tmp_path}/private")
    with served(call) as page:
        found = page.get()
        assert (len(found.keys), "salary" in found.text) == (1, False)
    (tmp_path / "private" / ".torchx_kfp").mkdir()
    with served(call) as page:
        assert "salary" in page.get().text


def test_runs_on_a_host_are_listed_with_their_records(call: Program, tmp_path: Path) -> None:
    from tests.execution.host.commands import write_pipelines

    base = tmp_path / "base"
    base.mkdir()
    write_pipelines(tmp_path, base)
    with KfpHost(tmp_path / "host") as host:
        done = call("submit", "good.yaml", "--host", host.url, "--tracker-base", str(base), "--watch", "--quiet")
        assert done.returncode == 0, done.stderr
        with served(call, "--host", host.url, "--tracker-base", str(base)) as page:
            answer = page.get()
            [row] = answer.rows
            assert (row["state"], row["trainloss"], row["evaluateloss"]) == ("✓succeeded", "0.5", "2.0 (2)")
            report = Page(page.get("report", run=answer.keys[0]).text)
            assert report.states["train"] == "succeeded"
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with served(call, "--tracker-base", str(base), TORCHX_KFP_HOST=nobody) as page:
            answer = page.get()
            assert len(answer.rows) == 1  # its records
            assert any(nobody in it for it in answer.notices)


def test_signals_and_a_port_in_use(call: Program, project: Path) -> None:
    with served(call) as page:
        port = urlsplit(page.url).port
        done = call("ui", "--port", str(port))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"Error: The port {port} is in use. Choose another one: --port 0 finds a free one.\n"
        assert page.get().notices[0].startswith("There are no runs in 'local_outputs'")
        page.process.send_signal(signal.SIGINT)
        assert page.process.communicate() == ("", "Serving the page of runs until Ctrl-C.\n")
        assert page.process.wait() == 130


def test_a_browser_is_not_given_the_token_on_its_command_line(call: Program, project: Path) -> None:
    browser = project / "browser"
    browser.write_text(
        '#!/bin/sh\necho "$1" > words; stat -c %a "${1#file://}" >> words; cat "${1#file://}" >> words\n'
    )
    browser.chmod(0o700)
    with call.start("ui", "--port", "0", DISPLAY=":9", BROWSER=f"{browser} %s") as process:
        url = process.stdout.readline().strip()
        words = project / "words"
        wait_until(lambda: words.exists() and url in words.read_text())
        place, mode, page = words.read_text().splitlines()
        assert (place.startswith("file:///"), mode) == (True, "600")
        assert page.endswith(f'content="0; url={url}">')
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert not Path(urlsplit(place).path).exists()


def test_the_extra_is_named_if_it_is_missing(call: Program, project: Path) -> None:
    (project / "sitecustomize.py").write_text("import sys\nsys.modules['waitress'] = None\n")
    done = call("ui", PYTHONPATH=str(project))
    assert done.returncode == 2
    assert 'pip install "torchx-kfp[ui]"' in done.stderr
