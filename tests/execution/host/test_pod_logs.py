"""Logs: what KFP's launcher prints is removed, and each line comes once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.execution.host.answers_of_kfp import RECORDED, answer
from tests.execution.host.scripted import Reply, Scripted, scripted, status
from tests.facts import says
from torchx_kfp.execution.host import pod_logs
from torchx_kfp.execution.host.connection import Connection, Timeouts
from torchx_kfp.execution.host.pod_logs import StageLogs, clean_log
from torchx_kfp.execution.host.settings import Settings

RUN, POD = "f19b6e98-51e7-4b62-ae0c-601f7270d2b4", "recorded-8r4c6-system-container-impl-3413469076"
START = "I1122 02:56:37.549663      16 main.go:67] Setting log level to: '1'\n"
END = "I1122 02:57:14.018185      16 launcher_v2.go:206] publish success.\n"


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(lambda request: Reply("")) as running:
        yield running


class Log:
    """The log of a pod, as it is read into its file."""

    def __init__(self, server: Scripted, pod: str = POD, **options: Any) -> None:
        self.said: list[str] = []
        connection = Connection(Settings(host=server.url), Timeouts(wait=0.001))
        self.logs = StageLogs(connection, RUN, self.said.append, **options)
        self.path = self.logs.add("train", pod)
        self._seen = b""

    def read_new(self, *, is_over: bool) -> bytes:
        """Return what has been added to the file."""
        self.logs.fetch(self.path, is_over)
        seen, self._seen = self._seen, self.path.read_bytes() if self.path.exists() else b""
        assert self._seen.startswith(seen)
        return self._seen[len(seen) :]

    def why_not(self, *, is_over: bool = True) -> str:
        """Return why the log cannot be read."""
        assert not self.logs.fetch(self.path, is_over)
        return self.said[-1]


def text_of(name: str) -> str:
    return str(answer(name))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("succeeded-log-first", ['done {"accuracy": 0.900745}']),
        ("succeeded-log-trial[0]", ['done {"x": 1}']),
        ("failed-log-inner.sleeper", ["waiting", "over"]),
    ],
)
def test_recorded_logs(server: Scripted, name: str, lines: list[str]) -> None:
    server.script = lambda request: Reply(text_of(name))
    assert Log(server).read_new(is_over=True).decode().splitlines() == lines
    assert Log(server, raw=True).read_new(is_over=True).decode() == text_of(name)
    assert server.requests[0].path == f"/apis/v1alpha1/runs/{RUN}/nodes/{POD}/log"


#: How Argo 3 writes the lines of its executor.
ARGO_3 = (
    'time="2026-11-28T21:34:46.565Z" level=info msg="capturing logs" argo=true\n'
    f"{START}%s"
    'time="2026-11-28T21:35:08.932Z" level=info msg="sub-process exited" argo=true error="<nil>"\n'
    "Error: exit status 1\n"
)


@pytest.mark.parametrize("name", ["failed", "job", "prepare"])
def test_a_log_from_kubernetes_has_the_lines_that_argo_archives(name: str) -> None:
    """Of several-user installations, logs come from pods, with lines of Argo's executor around the launcher's."""
    whole = text_of(f"several-users-log-{name}")
    lines = whole.splitlines(keepends=True)
    archived = "".join(line for line in lines if "argo=true" not in line and not line.startswith("Error: "))
    cleaned, error = clean_log(whole.encode())
    assert (cleaned, error) == clean_log(archived.encode())
    own = [line for line in archived.splitlines(keepends=True) if ".go:" not in line]
    assert cleaned.decode() == "".join(own)
    assert error == ("exit status 3" if name == "failed" else "")
    # A pod is read while it runs.
    for count in range(len(lines)):
        assert cleaned.startswith(clean_log("".join(lines[:count]).encode())[0])


def test_lines_of_an_earlier_argo_are_removed() -> None:
    assert clean_log((ARGO_3 % "half a line").encode())[0] == b"half a line\n"
    own = 'Error: exit status 1\ntime="2026-11-28T21:35:08.932Z" level=info msg=mine\n'
    assert clean_log((ARGO_3 % own).encode())[0].decode() == own


#: The end of a program in Go that has panicked.
PANIC = (
    "panic: runtime error: invalid memory address or nil pointer dereference\n"
    "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x1c]\n"
    "\ngoroutine 1 [running]:\nmain.run()\n\t/go/src/main.go:120 +0x1c\n"
)


def test_a_launcher_that_panics_says_why() -> None:
    assert clean_log(f"{START}one\n{PANIC}".encode()) == (
        b"one\n",
        "panic: runtime error: invalid memory address or nil pointer dereference",
    )
    fatal = END.replace("I1122", "F1122").replace("publish success.", "failed to execute component: no metadata store")
    stack = "goroutine 1 [running]:\nmain.main()\n\ngoroutine 7 [select]:\nmain.wait()\n"
    assert clean_log(f"{START}{fatal}{stack}".encode()) == (b"", "no metadata store")
    # An application in Go may panic as well; the launcher goes on after that.
    assert clean_log(f"{START}{PANIC}{END}".encode()) == (PANIC.encode(), "")
    assert clean_log(f"{START}one\n{stack}".encode()) == (f"one\n{stack}".encode(), "")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*-log-*.json")), ids=lambda path: path.stem)
def test_no_line_of_the_launcher_is_left(path: Path) -> None:
    assert b".go:" not in clean_log(text_of(path.stem).encode())[0]


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*-log-*.json")), ids=lambda path: path.stem)
@given(data=st.data())
def test_what_is_cleaned_of_a_log_stays_while_it_grows(path: Path, data: st.DataObject) -> None:
    """The kubelet may have removed its first lines."""
    lines = text_of(path.stem).encode().splitlines(keepends=True)[data.draw(st.integers(0, 3)) :]
    part = lines[: data.draw(st.integers(0, len(lines)))]
    assert clean_log(b"".join(lines))[0].startswith(clean_log(b"".join(part))[0])


@pytest.mark.parametrize(
    "own",
    [
        "I1122 02:57:00.000000      33 main.go:12] an application in Go",
        "I1122 02:57:00.000000      16 train.py:12] absl in the launcher's process",
        "{",
        '{\n  "a": 1\n}',
        "",
    ],
)
def test_lines_of_the_application_stay(own: str) -> None:
    assert clean_log(f"{START}{own}\n{END}".encode())[0].decode() == f"{own}\n"


def test_a_line_that_the_application_does_not_end() -> None:
    text = f"{START}50 %\ndone{END}a line\n{END}"
    assert clean_log(text.encode())[0] == b"50 %\ndone\na line\n"
    # Another process prints such lines, too.
    other = f"said: {END}".replace("16 launcher", "17 launcher").encode()
    assert clean_log(START.encode() + other)[0] == other


def test_a_launcher_that_is_silent_at_first() -> None:
    own = "one\nI1122 02:57:00.000000  7 main.go:1] mine\n"
    assert clean_log(f"{own}{END}two\n".encode())[0].decode() == f"{own}two\n"


def test_a_block_of_the_launcher_ends_with_its_object() -> None:
    text = f'{END.strip()} {{\n  "a": {{\n  }}\n}}\none\n{END.strip()} {{\n  never ended\n'
    assert clean_log((START + text).encode())[0] == b"one\n"


def test_each_line_comes_once_and_when_it_is_whole(server: Scripted) -> None:
    log = Log(server)
    seen = []
    for text, is_over in [
        ("", False),
        (START, False),
        (START + "one\ntw", False),
        (START + "one\ntwo\nthree\n", False),
        (START + "one\ntwo\nthree\n", False),
        # The pod is gone, and the log that is left is shorter, or is longer again.
        (START, False),
        (START + "one\ntwo\nthree\n" + END + "last", True),
        (START + "one\ntwo\nthree\n" + END + "last", True),
    ]:
        server.script = lambda request, text=text: Reply(text)
        seen.append(log.read_new(is_over=is_over).decode())
    assert seen == ["", "", "one\n", "two\nthree\n", "", "", "last\n", ""]


def test_a_log_that_kubernetes_begins_anew(server: Scripted) -> None:
    log = Log(server)
    seen = []
    for text in [START + "one\ntwo\nthree\n", "four\n", "", "four\nfive\nsix\n" + END]:
        server.script = lambda request, text=text: Reply(text)
        seen.append(log.read_new(is_over=False).decode())
    assert seen == ["one\ntwo\nthree\n", "four\n", "", "five\nsix\n"]


def test_a_large_log_is_not_fetched_all_the_time(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    server.script = lambda request: Reply("one\n")
    # Each log takes two seconds.
    times = iter([0.0, 2.0, 3.0, 19.0, 21.0, 23.0, 24.0, 26.0])
    monkeypatch.setattr(pod_logs, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = Log(server)
    assert [log.read_new(is_over=False) for _ in range(4)] == [b"one\n", b"", b"", b""]
    assert len(server.requests) == 2, "18 seconds later"
    log.read_new(is_over=True)
    assert len(server.requests) == 3, "the end is never put off"


def test_bytes_that_are_not_text_stay(server: Scripted) -> None:
    server.script = lambda request: Reply(b"\xff\x00\n")
    assert Log(server).read_new(is_over=False) == b"\xff\x00\n"


def test_a_command_to_copy_does_not_run_what_a_host_says(server: Scripted) -> None:
    server.script = lambda request: status(5, "no such pod", 404)
    assert re.search(says("kubectl logs -n kubeflow '$(touch x)' -c main"), Log(server, "$(touch x)").why_not())


def test_a_log_that_kfp_cannot_read_names_other_ways_when_the_pod_has_ended(server: Scripted) -> None:
    server.script = lambda request: Reply(answer("log-unreadable"))
    so_far = Log(server).why_not(is_over=False)
    assert re.search(says("when the pod ends", "does not return logs of running pods", "kubectl logs", POD), so_far)
    assert "code=NotFound" not in so_far, "KFP's own words are long, and nothing is wrong"
    assert re.search(says("does not return it", "code=NotFound", "kubectl logs"), Log(server).why_not())


@pytest.mark.parametrize(("code", "fact"), [(404, "no such log"), (500, "does not return it")])
def test_a_log_that_is_gone_names_other_ways(server: Scripted, code: int, fact: str) -> None:
    server.script = lambda request: status(13, "failed to read the pod's log", code)
    link = f"{server.url}/#/runs/details/{RUN}"
    facts = says(POD, fact, f"kubectl logs -n kubeflow {POD}", link, "failed to read the pod's log")
    assert re.search(facts, Log(server).why_not())


def test_logs_of_stages_with_similar_names_are_different_files(server: Scripted, tmp_path: Path) -> None:
    logs = StageLogs(Connection(Settings(host=server.url)), RUN, lambda sentence: None)
    names = ["train[1,2]", "train[1]-2", "train-1-2", "inner/train", "inner-train", "é" * 300, "é" * 301]
    files = {logs.add(name, POD) for name in names for _ in range(2)}
    assert len(files) == 2 * len(names)
    for file in files:
        (tmp_path / file.name).write_text("")
