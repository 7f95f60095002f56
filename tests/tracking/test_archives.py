"""Workspaces: which files travel, an archive that is the same everywhere, and what a stage unpacks."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.facts import says
from tests.oldest import needs_oldest, oldest_python
from torchx_kfp.common.credentials import credentials_matcher
from torchx_kfp.common.safe_files import open_regular
from torchx_kfp.contract.scripts import UNPACKER, unpacker_file, workspace_words
from torchx_kfp.errors import ArgumentError
from torchx_kfp.tracking.workspaces import list_workspace, pack_workspace


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    return [entry.name for entry in list_workspace(folder)]


def archive(folder: Path) -> tuple[bytes, str]:
    content = pack_workspace(list_workspace(folder))
    return content, hashlib.sha256(content).hexdigest()


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True
    )


TREE = {"train.py": "print(1)", "lib/__init__.py": "", "lib/größe 工.py": "x = 1\n", "run.sh": "#!/bin/sh\n"}


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    """The digest is a constant: it must not change with the machine, Python, the order of files, times or owners."""
    one, other = make(tmp_path / "one", TREE), make(tmp_path / "other", dict(reversed(TREE.items())))
    for folder in (one, other):
        (folder / "run.sh").chmod(0o755 if folder == one else 0o700)
        (folder / "link").symlink_to("lib/__init__.py")
    os.utime(other / "train.py", (1, 1))
    (other / "lib").chmod(0o700)
    content, digest = archive(one)
    assert archive(other) == (content, digest)
    assert digest == hashlib.sha256(content).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        found = opened.getnames()
    assert found == [UNPACKER, "lib/__init__.py", "lib/größe 工.py", "link", "run.sh", "train.py"]
    # Without the program, which may change with this package.
    digest = hashlib.sha256(content[512 + len(unpacker_file()) :]).hexdigest()
    assert digest == "983c89bff632c6ae8433de15072b65526662fa5d13b83adcbc77420202184c2d"


def test_everything_travels_but_what_is_never_code(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            **TREE,
            "__pycache__/x.pyc": "",
            "lib/__pycache__/y.pyc": "",
            "local_outputs/r/log.txt": "",
            "env/pyvenv.cfg": "",
            "env/lib/a.py": "",
            "conda/conda-meta/history": "",
            "data/empty": "",
        },
    )
    (tmp_path / "nothing").mkdir()
    assert names(tmp_path) == ["data/empty", "lib/__init__.py", "lib/größe 工.py", "run.sh", "train.py"]


def test_git_decides_if_the_folder_is_in_a_repository(tmp_path: Path) -> None:
    make(tmp_path, {**TREE, ".gitignore": "*.log\ndata/\n", "a.log": "", "data/big": "", "sub/new.py": ""})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py", "run.sh")
    git(tmp_path, "add", "-f", "a.log")
    (tmp_path / "run.sh").unlink()
    assert names(tmp_path) == [".gitignore", "a.log", "lib/__init__.py", "lib/größe 工.py", "sub/new.py", "train.py"]
    assert names(tmp_path / "sub") == ["new.py"]
    (tmp_path / ".git/HEAD").unlink()  # what git ignores must not travel where git is of no help
    with pytest.raises(ArgumentError, match=says(f"in the repository '{tmp_path}'", "git -C", ".torchxignore")):
        list_workspace(tmp_path / "sub")


@pytest.mark.parametrize("by", ["git", "ignore file", "nothing"])
def test_tracker_bases_and_environments_do_not_travel(tmp_path: Path, by: str) -> None:
    base = {"env/pyvenv.cfg": "", "env/lib/a.py": ""}
    base |= {"old/results/.torchx_kfp/runs/r": "", "old/results/r/train/1": "{}", "old/results/r.json": ""}
    make(tmp_path, {"train.py": "", "old/notes": "", ".torchx_kfp/runs/r": "", **base})
    if by == "git":
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-A")
    elif by == "ignore file":
        make(tmp_path, {".torchxignore": "/.torchxignore"})
    assert names(tmp_path) == ["old/notes", "train.py"]
    assert [entry.name for entry in list_workspace(tmp_path, [str(tmp_path / "old")])] == ["train.py"]


def test_git_of_a_worktree_and_a_submodule_does_not_travel(tmp_path: Path) -> None:
    """There, ``.git`` is a file that names the folder of git."""
    make(tmp_path, {"train.py": "", ".git": "gitdir: ../.git/worktrees/code\n", ".torchxignore": "*.sh\n"})
    make(tmp_path, {"lib/size.py": "", "lib/.git": "gitdir: ../../.git/modules/lib\n"})
    assert names(tmp_path) == [".torchxignore", "lib/size.py", "train.py"]


def test_an_ignore_file_decides_before_git(tmp_path: Path) -> None:
    make(tmp_path, {**TREE, ".torchxignore": "# data\n*.sh\nlib/*\n!lib/__init__.py\n", ".gitignore": "train.py\n"})
    git(tmp_path, "init", "-q")
    assert names(tmp_path) == [".gitignore", ".torchxignore", "lib/__init__.py", "train.py"]
    (tmp_path / ".torchxignore").write_bytes(b"\xef\xbb\xbf*.sh\r\nlib/\r\n.*\r\n")  # of an editor on Windows
    assert names(tmp_path) == ["train.py"]
    (tmp_path / ".torchxignore").write_text("*.sh\n!\n")
    with pytest.raises(ArgumentError, match=says(".torchxignore", "'!'")):
        list_workspace(tmp_path)
    for make_special, kind in ((os.mkfifo, "FIFO"), (lambda it: it.symlink_to("/dev/zero"), "device")):
        (tmp_path / ".torchxignore").unlink()
        make_special(tmp_path / ".torchxignore")
        with pytest.raises(ArgumentError, match=says(".torchxignore", "cannot be read", kind)):
            list_workspace(tmp_path)


@pytest.mark.parametrize("what", ["folders", "links"])
def test_more_than_can_be_followed_is_refused(tmp_path: Path, what: str) -> None:
    """A tree or a chain of links that is deeper than Python's stack."""
    folder = tmp_path
    for _ in range(1500 if what == "folders" else 0):
        folder /= "d"
        folder.mkdir()
    for number in range(2000 if what == "links" else 0):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    with pytest.raises(ArgumentError, match=says(what, ".torchxignore")):
        list_workspace(tmp_path)
    subprocess.run(["rm", "-rf", tmp_path], check=True)  # pytest could not
    tmp_path.mkdir()


def test_files_that_look_like_credentials_are_named(tmp_path: Path) -> None:
    make(tmp_path, {"train.py": "", ".env": "KEY=1", "deploy/id_rsa": "", "deploy/tls.pem": ""})
    with pytest.raises(ArgumentError, match=says(".env", "deploy/id_rsa", "deploy/tls.pem", ".torchxignore", "!.env")):
        list_workspace(tmp_path)
    make(tmp_path, {".torchxignore": "*\n!*\n!deploy/**\n"})  # which names none of them
    with pytest.raises(ArgumentError, match=says("3 files", ".env", "deploy/id_rsa", "on purpose")):
        list_workspace(tmp_path)
    make(tmp_path, {".torchxignore": "!*\ndeploy/\n!.env\n"})
    assert names(tmp_path) == [".env", ".torchxignore", "train.py"]


#: Names that scanners for secrets know, and names of code, data and examples.
SECRET = """
.env .ENV prod.env deploy/.Env.Local .envrc .npmrc .netrc _netrc .pypirc .pgpass .my.cnf .htpasswd .dockercfg
.git-credentials .s3cfg .boto .databrickscfg .vault-token .terraformrc .condarc pip.conf kaggle.json .bash_history
.aws/credentials home/.aws/config .config/gcloud/legacy/adc.json .azure/accessTokens.json .ssh/config .kube/config
.docker/config.json .config/gh/hosts.yml .huggingface/token .cache/huggingface/token .gnupg/secring.gpg
.cargo/credentials.toml .m2/settings.xml .ngc/config .pip/pip.conf application_default_credentials.json
client_secret_1.apps.json service_account.json service-account-prod.json my-service-account.json credentials.json
Credentials.csv aws_credentials.json x-firebase-adminsdk-1.json accessKeys.csv token.pickle hf_token.txt api_key.txt
a.pem TLS.KEY a.p8 a.p12 a.pfx a.jks a.keystore a.kdbx a.ppk a.keytab a.ovpn id_rsa id_rsa.bak id_ed25519 ID_ECDSA
id_work deploy_rsa master.key terraform.tfstate terraform.tfstate.backup prod.tfvars secrets.yaml secrets.toml
.streamlit/secrets.toml .secrets secret.json secrets.py credentials kubeconfig kubeconfig.prod sftp-config.json
app-secret.yaml k8s.secrets.yml creds.json gcp-creds.json aws_credentials new_credentials.csv gcp.json
sa-key.json key.json
github_token .hf_token slack-token.txt openai_api_key openai_key.txt local.settings.json
.node_repl_history aws_secret_key.txt private-key.txt key.asc my-private.asc secring.asc
ssh_host_rsa_key .env.py .gitconfig pip.ini .renviron jupyter_server_config.json .cloudflared/a.json
secret_token.py hf_token.py master_password.py wandb_api_key.py private-key.py api-key.py
"""
HARMLESS = """
train.py .env.example .gitignore environment.yml env.py keys.py tokenizer.json tokens.py id_map.py id_rsa.pub
data/id_cards/train.csv credentials.py secret_santa.py token/a.py config.json settings.xml .config/app.toml
aws/config.py api_keys.py password_reset.py key.txt model.keras Dockerfile monkey.txt secretary/main.py
data/tokens.txt ca.crt creds.py private_key.py access_token.py monkey.json history.csv
apikeys.py privkey.py commands/secret.py answer_key.txt bos_token next_token tokens.json grid.asc
"""


def test_what_looks_like_credentials() -> None:
    looks_secret = credentials_matcher()
    assert [name for name in SECRET.split() if not looks_secret(name)] == []
    assert [name for name in HARMLESS.split() if looks_secret(name)] == []


@pytest.mark.parametrize(
    ("lines", "travel"),
    [
        ("!**", ""),
        ("!deploy/*.json", ""),
        ("!.env", ".env"),
        (
            "!/.env\n!.aws/config\n!deploy/tls.pem\n!deploy/secret.json",
            ".aws/config .env deploy/secret.json deploy/tls.pem",
        ),
    ],
)
def test_a_line_that_sends_credentials_names_them(tmp_path: Path, lines: str, travel: str) -> None:
    secrets = {".env", ".aws/config", "deploy/tls.pem", "deploy/secret.json"}
    make(tmp_path, {"train.py": "", **dict.fromkeys(secrets, ""), ".torchxignore": lines})
    refused = sorted(secrets - {*travel.split()})
    if not refused:
        assert names(tmp_path) == sorted([*secrets, ".torchxignore", "train.py"])
        return
    with pytest.raises(ArgumentError) as caught:
        list_workspace(tmp_path)
    assert [name for name in sorted(secrets) if repr(name) in str(caught.value)] == refused


def test_links_stay_links_if_they_stay_inside(tmp_path: Path) -> None:
    make(tmp_path / "code", {"a/train.py": "1"})
    (tmp_path / "code/a/same").symlink_to("../a/train.py")
    (tmp_path / "code/folder").symlink_to("a")
    found = {entry.name: entry.target for entry in list_workspace(tmp_path / "code")}
    assert found == {"a/same": "../a/train.py", "a/train.py": None, "folder": "a"}
    (tmp_path / "code/top").symlink_to(".")
    for target in ("../outside", "/etc/passwd", "top/..", "../code/a/train.py"):
        (tmp_path / "code/bad").unlink(missing_ok=True)
        (tmp_path / "code/bad").symlink_to(target)
        with pytest.raises(ArgumentError, match=says("bad", target, "outside", ".torchxignore")):
            list_workspace(tmp_path / "code")


def test_only_files_with_names_of_text_in_a_folder_travel(tmp_path: Path) -> None:
    def refused(folder: object, *facts: str) -> None:
        with pytest.raises(ArgumentError, match=says(*facts)):
            list_workspace(folder)

    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path, "'pipe'", "FIFO", ".torchxignore")
    for folder in (f"{tmp_path}/none", f"{tmp_path}/pipe", ""):
        refused(folder, f"{folder}'", "not a folder")
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "end"))
        refused(tmp_path, "'end'", "socket")
    (tmp_path / "end").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).touch()
    refused(tmp_path, "caf\\xe9", "UTF-8")


@pytest.mark.parametrize("change", ["longer", "shorter", "gone", "link", "same size"])
def test_a_file_that_changes_while_it_is_packed(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path, {"a.py": "12345"}) / "a.py"
    entries = list_workspace(tmp_path)
    if change == "same size":
        # It changes after it was opened.
        def changing(*words: str) -> BinaryIO:
            file = open_regular(*words)
            path.write_text("54321")
            os.utime(path, (1, 1))
            return file

        monkeypatch.setattr("torchx_kfp.tracking.workspaces.open_regular", changing)
    elif change in ("gone", "link"):
        path.unlink()
        if change == "link":
            path.symlink_to("/etc/passwd")
    else:
        path.write_text("123456" if change == "longer" else "1234")
    with pytest.raises(ArgumentError, match=says("a.py")):
        pack_workspace(entries)


# In a stage


def run(url: str, *words: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [*workspace_words(url), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={**os.environ, "PATH": path, "TMPDIR": str(folder), **environ},
    )


def stored(folder: Path, content: bytes) -> str:
    path = folder / f"{hashlib.sha256(content).hexdigest()}.tar"
    path.write_bytes(content)
    return str(path)


def test_the_application_starts_in_the_workspace(tmp_path: Path) -> None:
    code = make(
        tmp_path / "code",
        {
            "train.py": "import os, sys, lib.size; print(lib.size.x, os.getcwd() == sys.argv[1])",
            "lib/__init__.py": "",
            "lib/size.py": "x = 7",
            "empty": "",
            "run.sh": '#!/bin/sh\nexec python3 train.py "$PWD"\n',
        },
    )
    (code / "run.sh").chmod(0o755)
    (code / "link.sh").symlink_to("run.sh")
    url = stored(tmp_path, archive(code)[0])
    # Modules in the image's working directory are not those of the programs before the application.
    (tmp_path / "tarfile.py").write_text("raise SystemExit('the wrong module')")
    done = run(url, "./link.sh", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 True\n", "")
    (unpacked,) = tmp_path.glob("workspace-*")
    assert archive(unpacked) == archive(code)
    done = run(
        url, sys.executable, "-c", "import sys, lib.size; sys.exit(lib.size.x)", folder=tmp_path, PYTHONPATH="/other"
    )
    assert done.returncode == 7
    done = run(url, "sh", "-c", "echo $PYTHONPATH", folder=tmp_path, PYTHONPATH="/other")
    assert done.stdout.endswith(":/other\n")


@needs_oldest
def test_the_oldest_python_of_images(tmp_path: Path) -> None:
    """No fsspec that this machine may have runs in it: this one reads a file in the same way."""
    make(
        tmp_path / "site/fsspec",
        {
            "__init__.py": "from . import config, core",
            "config.py": "conf = {}",
            "core.py": "class Files:\n    def cat_file(self, path): return open(path, 'rb').read()\n"
            "def url_to_fs(url): return Files(), url\n",
        },
    )
    (tmp_path / "python3").symlink_to(oldest_python() or "")
    code = make(tmp_path / "code", {**TREE, "lib/größe.py": "import sys; print(sys.version_info[:2])"})
    (code / "link").symlink_to("lib")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path / "site")}
    done = run(stored(tmp_path, archive(code)[0]), "python3", "link/größe.py", folder=tmp_path, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(3, 8)\n", "")
    done = run(stored(tmp_path, b"an archive of another form"), "python3", folder=tmp_path, **environ)
    assert (done.returncode, "earlier form" in done.stderr) == (125, True)


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_an_image_without_python(tmp_path: Path, shell: str) -> None:
    """With an empty parameter, an image needs nothing but sh."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "sh").symlink_to(program)
    words = ("sh", "-c", "echo started; exit 3")
    done = run("", *words, folder=tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (3, "started\n", "")
    done = run("s3://bucket/a.tar", *words, folder=tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (125, "")
    assert "a workspace needs python3 and fsspec" in done.stderr


def test_an_image_without_fsspec_or_a_driver(tmp_path: Path) -> None:
    done = run("none://bucket/a.tar", "echo", "started", folder=tmp_path)
    assert (done.returncode, done.stdout, "none" in done.stderr) == (125, "", True)
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(make(tmp_path / "site", {"fsspec.py": "import no_driver"}))}
    done = run("s3://bucket/a.tar", "echo", "started", folder=tmp_path, **bare)
    assert (done.returncode, done.stdout) == (125, "")
    assert "s3://bucket/a.tar cannot be used: ModuleNotFoundError(\"No module named 'no_driver'\")" in done.stderr


@pytest.mark.parametrize("damage", ["changed", "cut", "none", "other code"])
def test_an_archive_that_was_changed_starts_nothing(tmp_path: Path, damage: str) -> None:
    """Whoever can write to the storage, but not change the pipeline's arguments, can change the code of no stage."""
    content = archive(make(tmp_path / "code", TREE))[0]
    url = stored(tmp_path, content)
    if damage == "none":
        Path(url).unlink()
    elif damage == "other code":  # an archive that is right by itself, whose own program would run it
        Path(url).write_bytes(archive(make(tmp_path / "other", {"train.py": "print(2)"}))[0])
    else:
        # What runs first is in the archive as well.
        changed = content.replace(b"import io\nimport os", b"import os\nimport io")
        assert len(changed) == len(content)
        assert changed != content
        Path(url).write_bytes(changed if damage == "changed" else content[:-1])
    done = run(url, "echo", "started", folder=tmp_path, PYTHONOPTIMIZE="2")
    assert (done.returncode, done.stdout) == (125, "")
    assert url in done.stderr
    assert ("No such file" if damage == "none" else "was changed") in done.stderr
    assert not list(tmp_path.glob("workspace-*"))


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", text: bytes = b"", **headers: str
) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(text)
    info.pax_headers = {f"GNU.sparse.{key}": value for key, value in headers.items()}
    return info, io.BytesIO(text)


@pytest.mark.parametrize(
    ("members", "fact"),
    [
        ([member("../out", text=b"x")], "'../out'"),
        ([member("/tmp/torchx-kfp-out", text=b"x")], "'/tmp/torchx-kfp-out'"),
        ([member("a/../../out", text=b"x")], "'a/../../out'"),
        ([member("a/./b", text=b"x")], "'a/./b'"),
        ([member("link", tarfile.SYMTYPE, "/etc")], "'/etc'"),
        ([member("link", tarfile.SYMTYPE, "..")], "'..'"),
        ([member("a/link", tarfile.SYMTYPE, "../../x")], "'../../x'"),
        ([member("a", tarfile.SYMTYPE, "."), member("b", tarfile.SYMTYPE, "a/..")], "'a/..'"),
        ([member("link", tarfile.SYMTYPE, "."), member("link/x", text=b"x")], "FileExists"),
        ([member("file", text=b"x"), member("file", text=b"y")], "FileExists"),
        ([member("hard", tarfile.LNKTYPE, "/etc/passwd")], "'hard'"),
        ([member("pipe", tarfile.FIFOTYPE)], "'pipe'"),
        ([member("device", tarfile.CHRTYPE)], "'device'"),
        ([member("sparse", tarfile.GNUTYPE_SPARSE)], "'sparse'"),
        ([member("large", text=b"x", map="0,1", size="9999999999")], "'large'"),
    ],
    ids=lambda it: "+".join(one[0].name for one in it) if isinstance(it, list) else "",
)
def test_a_hostile_archive_starts_nothing_and_leaves_its_folder_alone(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, io.BytesIO]], fact: str
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for info, text in [member(UNPACKER, text=unpacker_file()), *members]:
            text.seek(0)
            packed.addfile(info, text)
    inner = tmp_path / "tmp"
    inner.mkdir()
    url = stored(tmp_path, out.getvalue())
    done = run(url, "echo", "started", folder=inner)
    assert (done.returncode, done.stdout) == (125, "")
    assert url in done.stderr
    assert fact in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"tmp", Path(url).name}
    assert not os.path.exists("/tmp/torchx-kfp-out")
    assert all(path.name.startswith("workspace-") for path in inner.iterdir())


def test_programs_that_cannot_be_started(tmp_path: Path) -> None:
    url = stored(tmp_path, archive(make(tmp_path / "code", TREE))[0])
    for word, code, fact in (("no-such-program", 127, "No such file"), ("./train.py", 126, "Permission denied")):
        done = run(url, word, folder=tmp_path)
        assert (done.returncode, done.stderr) == (
            code,
            f"torchx-kfp: {word}: {fact}{' or directory' * (code == 127)}\n",
        )
