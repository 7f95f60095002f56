"""What the corpus compiles to: ``compiled.json`` has a digest of each pipeline, as the usual version of kfp writes it.

Another version of kfp that writes the same needs no run of its own. ``make goldens`` writes the digests anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from tests.local.corpus import FAMILIES, Case, load_cases
from torchx_kfp.pipeline.load import compile_function

FILE = Path(__file__).with_name("compiled.json")

#: What differs by itself: the version of kfp (of the file, and of what Python components install), and an archive of
#: embedded files, which holds their times.
_VARIABLE = re.compile(r"sdkVersion: kfp-\S+|kfp==[\w.]+|ARCHIVE_B64 = '[^']+'")


def digest(case: Case) -> str:
    """Return the digest of what the pipeline compiles to, without what differs each time and where the clone is."""
    text = compile_function(case.pipeline).text.replace(str(FILE.parent), "corpus")
    return hashlib.sha256(_VARIABLE.sub("", text).encode()).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digests of all pipelines that this version of kfp compiles, by name."""
    return {case.name: digest(case) for family in FAMILIES for case in load_cases(family).values()}


def recorded() -> dict[str, str]:
    """Return the digests of the usual version, by the pipelines' names."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def write() -> None:
    """Write the digests of the installed version."""
    FILE.write_text(json.dumps(digests(), indent=0) + "\n", encoding="utf-8")
