"""Archives of code are stored whole or not at all, by several at once, on a full disk and through a bad connection."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import finish_requests
from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp.errors import TrackerError, WorkspaceError
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.workspaces import PackedWorkspace

#: Packs the folder, tells so, waits for its turn, and stores it.
SUBMIT = """
import sys
from torchx_kfp.tracking.recorder import Recorder
packed = Recorder.open(sys.argv[1]).pack_workspace(sys.argv[2])
print("packed", flush=True)
sys.stdin.readline()
packed.upload()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 500_000)
    return folder


def archives(base: Path) -> list[Path]:
    """Return the archives that a stage may find, and check that each is the one that its name says."""
    found = list(base.glob(".torchx_kfp/workspaces/*.tar"))
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    return found


@pytest.mark.parametrize("there", ["nothing", "damaged"])
def test_submits_at_once_store_one_archive(tmp_path: Path, code: Path, there: str) -> None:
    base = tmp_path / "base"
    packed = Recorder.open(str(base)).pack_workspace(code)
    if there == "damaged":
        Path(packed.url).parent.mkdir(parents=True)
        Path(packed.url).write_bytes(packed.archive[:-1])
    words = [sys.executable, "-c", SUBMIT, str(base), str(code)]
    with ExitStack() as stack:
        submits = [
            stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(4)
        ]
        for submit in submits:
            assert submit.stdout is not None
            assert submit.stdout.readline() == "packed\n"
        for submit in submits:
            assert submit.stdin is not None
            submit.stdin.write("\n")
            submit.stdin.flush()
        while any(submit.poll() is None for submit in submits):
            if there == "nothing":
                archives(base)
    assert [submit.returncode for submit in submits] == [0] * 4
    assert archives(base) == [Path(packed.url)]
    assert packed.upload() is False


def test_a_workspace_without_files(tmp_path: Path, code: Path) -> None:
    (code / ".torchxignore").write_text("*\n")
    with pytest.raises(WorkspaceError, match=says(str(code), "no files", ".torchxignore")):
        Recorder.open(str(tmp_path)).pack_workspace(code)


def test_a_full_disk_leaves_no_archive(tmp_path: Path, code: Path) -> None:
    """A limit on the size of files simulates the disk."""
    limited = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
{SUBMIT}"""
    base = tmp_path / "base"
    words = [sys.executable, "-c", limited, str(base), str(code)]
    done = subprocess.run(words, input="\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Cannot write {base}/.torchx_kfp/workspaces/" in done.stderr
    assert "File too large" in done.stderr
    assert [path for path in base.rglob("*") if path.is_file()] == []
    assert Recorder.open(str(base)).pack_workspace(code).upload() is True
    assert len(archives(base)) == 1


@pytest.mark.s3
def test_a_broken_upload_leaves_no_archive(
    s3_server: S3Server, s3_base: str, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    with Proxy(s3_server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        recorder = Recorder.open(s3_base)
        packed = recorder.pack_workspace(code)
        # A full bucket, or one that must not be written to.
        proxy.refused["PUT"] = 403
        with pytest.raises(TrackerError, match=says(packed.url)):
            packed.upload()
        assert stored(packed) is None
        proxy.refused.clear()
        # The connection breaks before, after and again before the server has it.
        proxy.faults.extend([None, "cut", "lost", "cut"])
        assert packed.upload() is True
        assert stored(packed) == packed.archive
        proxy.requests.clear()
        assert packed.upload() is False
        assert len(proxy.requests) == 1, proxy.requests
        finish_requests()


def stored(packed: PackedWorkspace) -> bytes | None:
    return packed.store.read(f".torchx_kfp/workspaces/{packed.digest}.tar")
