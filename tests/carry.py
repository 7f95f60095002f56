"""What a stage's command carries of ``torchx_kfp/publisher.py``: that program, made small.

``python -m tests.carry`` (part of ``make goldens``) writes ``torchx_kfp/adapter/stage/carried.py`` anew. What a
command holds is part of KFP's cache key, so it is kept in the repository, and the same whichever zlib and Python a
pipeline is compiled with.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "torchx_kfp" / "publisher.py"
CARRIED = REPOSITORY / "torchx_kfp" / "adapter" / "stage" / "carried.py"

#: Without the working directory in the path: a zlib.py of the application is not Python's.
_BOOT = (
    "import sys;sys.path=[*filter(None,sys.path)];from zlib import*;from base64 import*;"
    'exec(decompress(b64decode("{}"),-15))'
)

#: What only a type checker reads.
_TYPES = re.compile(r"^from __future__.*?\n|^TYPE_CHECKING = False\n.*?\n\n", re.DOTALL | re.MULTILINE)

_MODULE = '''"""``torchx_kfp.publisher`` as an argument of ``python3 -c``. Written by ``make goldens``."""

#: What it was made of: the SHA-256 of that module's text.
SOURCE = "{digest}"

PROGRAM = (
{lines}
)
'''


def digest() -> str:
    """The SHA-256 of the module's text."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def small_program() -> str:
    """The module as an argument of ``python3 -c``."""
    import python_minifier
    import zopfli.zlib

    text = python_minifier.minify(
        _TYPES.sub("", SOURCE.read_text(encoding="utf-8")),
        remove_literal_statements=True,  # docstrings
        rename_globals=True,
        hoist_literals=False,  # they are what compresses best
    )
    # The same format as zlib's, and a few bytes less of it. Without its header and its checksum.
    packed = zopfli.zlib.compress(text.encode(), numiterations=1000)[2:-4]
    return _BOOT.format(base64.b64encode(packed).decode())


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and nothing is rewritten there: run this on your machine, and commit what changes.")
    program = small_program()
    pieces = textwrap.wrap(program, 110, drop_whitespace=False)
    lines = "\n".join("    " + (repr(piece) if '"' in piece else f'"{piece}"') for piece in pieces)
    CARRIED.write_text(_MODULE.format(digest=digest(), lines=lines), encoding="utf-8")
    print(f"wrote {CARRIED.relative_to(REPOSITORY)}: {len(program)} bytes")


if __name__ == "__main__":
    main()
