"""The corpus under kfp.local, where that can run it: the same ends, outputs and files as here, of one run each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.corpus import FAMILIES, VERSION, load_cases
from tests.local.corpus.kfp_local import content_of, is_comparable
from torchx_kfp.local import Watch, run

ROOT = Path(__file__).parents[2]
COMPARED = {family: [case for case in load_cases(family).values() if is_comparable(case)] for family in FAMILIES}


@pytest.mark.skipif(VERSION < (2, 15), reason="kfp.local has neither loops nor conditions before kfp 2.15")
@pytest.mark.parametrize("family", [family for family in FAMILIES if COMPARED[family]])
def test_the_same_as_kfp_local(family, tmp_path, monkeypatch):
    ours_folder, theirs_folder = tmp_path / "ours", tmp_path / "theirs"
    theirs_folder.mkdir()
    ours_folder.mkdir()
    monkeypatch.chdir(ours_folder)
    command = [sys.executable, "-W", "ignore", "-m", "tests.local.corpus.kfp_local", family]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (theirs_folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=theirs_folder, env=environ)
        ours = {case.name: end_of(case) for case in COMPARED[family]}
        printed, _ = process.communicate()
    assert process.returncode == 0, (theirs_folder / "log").read_text()
    theirs = json.loads(printed.splitlines()[-1])
    for end in theirs.values():
        end.pop("error", None)
    assert ours == theirs


def end_of(case):
    """How the pipeline ends here, in the form of ``kfp_local.run_case``."""
    result = run(case.pipeline, case.arguments, watch=Watch())
    if result.state == "failed":
        return {"state": "failed"}
    return {
        "state": str(result.state),
        "outputs": dict(result.outputs),
        "artifacts": {name: content_of(made) for name, made in result.artifacts.items()},
    }
