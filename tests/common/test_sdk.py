"""KFP's SDK is imported without its client, which is slow to load."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.versions

#: Imports kfp once, and has a fork for each of the ways to its client.
CLIENT = """
import os, sys, torchx_kfp.common.sdk
torchx_kfp.common.sdk.import_kfp()
import kfp.dsl, kfp.compiler, kfp.kubernetes, torchx_kfp.authoring
print([name for name in sys.modules if name.startswith(("kfp.client", "kfp_server_api"))])
try:
    kfp.no_such_name
except AttributeError as error:
    print(error, flush=True)
for first in sys.argv[1:]:
    if pid := os.fork():
        os.waitpid(pid, 0)
        continue
    exec(first)
    import kfp.client.client
    from kfp.client import Client
    print(first, kfp.Client is Client is kfp.client.Client is kfp.client.client.Client, Client.__name__, sep=": ")
    break
"""


def test_kfps_client_is_loaded_when_it_is_asked_for() -> None:
    ways = (
        *("kfp.Client", "from kfp import Client", "import kfp.client"),
        *("from kfp import client", "from kfp.client import *"),
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CLIENT, *ways], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[]",
        "module 'kfp' has no attribute 'no_such_name'",
        *(f"{first}: True: Client" for first in ways),
    ]
