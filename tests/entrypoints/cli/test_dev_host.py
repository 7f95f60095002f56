"""``torchx-kfp dev-host``: who reaches it, and how it ends. A transcript has the commands of a user."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from torchx_kfp_dev_host import DevHost

import torchx_kfp
from tests.entrypoints.cli.conftest import PIPELINE
from tests.execution.host.calling import wait_until
from tests.facts import says
from tests.programs import Program
from tests.transcripts.hosts import a_dev_host
from torchx_kfp.local import State
from torchx_kfp.local import attach as attach_here

_RUNS = "/apis/v2beta1/runs"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DevHost]:
    with DevHost(tmp_path, token="right") as host:
        yield host


def status(host: DevHost, path: str = _RUNS, **headers: str) -> int:
    asked = urllib.request.Request(host.url + path, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Length": "99999999999"}, 413),
    ],
)
def test_only_programs_of_this_machine_with_the_token_get_answers(
    host: DevHost, headers: Mapping[str, str], code: int
) -> None:
    assert status(host, **{"Authorization": "Bearer right", **headers}) == code
    assert host.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("path", "headers", "data"),
    [
        (_RUNS, {}, b"[1]"),
        (_RUNS, {}, b"{"),
        (_RUNS, {}, b"{}"),
        ("/apis/v2beta1/none", {}, None),
        (f"{_RUNS}?page_size=abc", {}, None),
        (f"{_RUNS}?page_token=abc", {}, None),
        (_RUNS, {"Origin": "http://["}, None),
        (_RUNS, {"Content-Length": "9" * 5001}, None),
    ],
)
def test_a_request_that_makes_no_sense_is_answered(
    host: DevHost, path: str, headers: Mapping[str, str], data: bytes | None, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = urllib.request.Request(host.url + path, data, {"Authorization": "Bearer right", **headers})
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(asked, timeout=120):
        pass
    with refused.value as error:
        assert error.code in (400, 500, 501)
        assert "message" in json.loads(error.read())
    assert capfd.readouterr().err == ""


def test_the_address_has_a_page_that_says_what_it_is(host: DevHost) -> None:
    with urllib.request.urlopen(host.url, timeout=120) as answer:
        assert re.search(says("dev host", "no pages", "watch"), answer.read().decode())
    assert status(host, "/", Host="evil.example") == 403


def test_the_end_of_the_host_ends_its_runs(tmp_path: Path, call: Program) -> None:
    (tmp_path / "sleeps.py").write_text(PIPELINE)
    with a_dev_host(tmp_path) as around:
        done = call("submit", str(tmp_path / "sleeps.py:sleeps"), folder=tmp_path, **around.environ)
        assert done.returncode == 0, done.stderr
        runs = tmp_path / ".torchx_kfp/dev-host/runs"
        log = wait_until(lambda: next(runs.glob("*/*/log.txt"), None))
        wait_until(lambda: "asleep" in log.read_text())
        settings = Path(around.environ["TORCHX_KFP_CONFIG"])
        assert {path.stat().st_mode & 0o777 for path in (settings, settings.with_name("token"))} == {0o600}
    assert attach_here(done.stdout.split()[0], output_dir=runs).wait().state is State.CANCELED


def test_a_port_that_another_program_uses_is_an_error(call: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = call("dev-host", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says(f"The port {port} cannot be used", "another program uses it", "--port 0"), done.stderr)


def test_without_its_package_the_command_says_what_to_type(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torchx_kfp_dev_host'] = None; sys.argv[1:] = ['dev-host']; "
        "from torchx_kfp.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert re.search(says("pip install", "torchx-kfp-dev-host @ git+https://github.com/"), done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_for_this_version() -> None:
    folder = Path(__file__).parents[3] / "packages" / "torchx-kfp-dev-host"
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{torchx_kfp.__version__}"\n' in text
    assert f'\ndependencies = ["torchx-kfp=={torchx_kfp.__version__}"]\n' in text
