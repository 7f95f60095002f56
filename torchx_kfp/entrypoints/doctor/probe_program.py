"""The program of the stages that ``torchx-kfp doctor --run`` starts, for Python 3.8. It needs fsspec and nothing else.

Its source travels in the command of a stage. A line that begins with ``SAYS`` is for the doctor, which reads the log.
"""

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

SAYS = "torchx-kfp doctor: "
#: Seconds in which one replica waits for the other.
TOGETHER = 120.0


def say(text):  # type: (str) -> None
    print(SAYS + text, flush=True)


def need(packages, install):  # type: (str, bool) -> None
    """Import packages, after their installation if that is wanted."""
    names = packages.split(",")
    for attempt in (0, 1):
        lacking = []
        for name in names:
            try:
                importlib.import_module(name)
            except ImportError as error:
                lacking.append(f"{name} ({error})")
        if not lacking:
            return
        if attempt or not install:
            say("the image lacks " + ", ".join(lacking))
            sys.exit(3)
        folder = tempfile.mkdtemp()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--target", folder]
        done = subprocess.run(command + names, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            last = (done.stdout.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
            say(f"the image lacks {', '.join(lacking)}, and pip cannot install them: {last[-300:]}")
            sys.exit(3)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()


def probe(stage, token, packages, install):  # type: (str, str, str, bool) -> None
    """Record a result, after those of the stage that this one reads; ``retried`` fails at its first attempt."""
    need(packages, install)
    import fsspec

    base, own = os.environ["TORCHX_TRACKER_BASE"], os.environ["TORCHX_JOB_ID"]
    try:
        files, path = fsspec.core.url_to_fs(base)
        result = {
            "token": token,
            "label": os.environ.get("KFP_RUN_ID", ""),
            "uid": os.environ.get("KFP_POD_UID", ""),
        }  # type: dict[str, object]
        parent = os.environ.get("TORCHX_PARENT_RUN_ID")
        if parent:
            result["read"] = json.loads(files.cat_file(path + "/" + parent))["token"]
        folder = path + "/" + own.rpartition("/")[0]
        earlier = 0
        if stage == "retried":
            with contextlib.suppress(FileNotFoundError):
                earlier = len(files.find(folder))
            result["attempts"] = earlier + 1
        if "://" not in base:
            files.makedirs(folder, exist_ok=True)
        files.pipe_file(path + "/" + own, json.dumps(result).encode())
    except Exception as error:
        say(f"the tracker base {base.rpartition('@')[2]} cannot be used: {type(error).__name__}: {error}")
        sys.exit(4)
    if stage == "retried" and not earlier:
        say("this attempt fails, to see whether there is another one")
        sys.exit(5)


def meet(token, port):  # type: (str, int) -> None
    """Exchange a token between replica 0 and replica 1."""
    host, number = os.environ["TORCHX_RANK0_HOST"], os.environ["TORCHX_REPLICA_ID"]
    end = time.monotonic() + TOGETHER
    if number == "0":
        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as server:
            if server.family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen()
            server.settimeout(TOGETHER)
            try:
                other = server.accept()[0]
            except OSError:
                say(f"replica 1 has not reached replica 0 at {host}:{port} within {TOGETHER:g} s")
                sys.exit(6)
            with other:
                other.sendall(token.encode())
        return
    problem = ""
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=10) as connection:
                got = connection.makefile("rb").read().decode()
            if got == token:
                say("two replicas have met at " + host)
                return
            problem = "another program answers there"
        except OSError as error:
            problem = str(error)
        time.sleep(0.5)
    say(f"replica 1 cannot reach replica 0 at {host}:{port}: {problem}")
    sys.exit(6)


if __name__ == "__main__":
    if sys.argv[1] == "meet":
        meet(sys.argv[2], int(sys.argv[3]))
    else:
        probe(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "install")
