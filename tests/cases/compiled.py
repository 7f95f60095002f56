"""The compiled corpus: ``compiled.json`` has a digest of each pipeline as the usual version of kfp compiles it.

A pipeline that another version of kfp compiles to the same need not run again. ``make goldens`` rewrites the digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from tests.cases import KFP_FAMILIES, Case, load_cases
from torchx_kfp.execution.pipeline.load import compile_function

FILE = Path(__file__).with_name("compiled.json")

#: Text that varies: the version of kfp (of the file, and of packages that Python components install), and archives of
#: embedded files, which contain their times.
_VARIABLE = re.compile(r"sdkVersion: kfp-\S+|kfp==[\w.]+|ARCHIVE_B64 = '[^']+'")


def digest(case: Case) -> str:
    """Return the digest of the compiled pipeline, without text that varies and without the clone's location."""
    text = compile_function(case.pipeline).text.replace(str(FILE.parent), "corpus")
    return hashlib.sha256(_VARIABLE.sub("", text).encode()).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digests of all pipelines that this version of kfp compiles, by name."""
    return {case.name: digest(case) for family in KFP_FAMILIES for case in load_cases(family).values()}


def recorded() -> dict[str, str]:
    """Return the digests of the usual version, by the pipelines' names."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def write() -> None:
    """Write the digests of the installed version."""
    FILE.write_text(json.dumps(digests(), indent=0) + "\n", encoding="utf-8")
