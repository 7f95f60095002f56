"""Make ``torchx_kfp/publisher.py`` small enough to be carried by the commands of stages.

``python -m tools.carry`` (part of ``make goldens``) rewrites ``torchx_kfp/adapter/stage/carried.py``. A command is part
of KFP's cache key, so the program is kept in the repository: it must not depend on the zlib and the Python that
compile a pipeline.
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

#: Removes the working directory from the path, where an application may have a zlib.py.
_BOOT = (
    "import sys;sys.path=[*filter(None,sys.path)];from zlib import*;from base64 import*;"
    'exec(decompress(b64decode("{}"),-15))'
)

#: Matches code that is only for type checkers.
_TYPES = re.compile(r"^from __future__.*?\n|^TYPE_CHECKING = False\n.*?\n\n", re.DOTALL | re.MULTILINE)

_MODULE = '''"""``torchx_kfp.publisher`` as an argument of ``python3 -c``. Do not edit: ``make goldens`` writes it."""

#: The SHA-256 of the text of that module, from which ``PROGRAM`` was made.
SOURCE = "{digest}"

PROGRAM = (
{lines}
)
'''


def digest() -> str:
    """Return the SHA-256 of the module's text."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def small_program() -> str:
    """Return the module as an argument of ``python3 -c``."""
    import python_minifier
    import zopfli.zlib

    text = python_minifier.minify(
        _TYPES.sub("", SOURCE.read_text(encoding="utf-8")),
        remove_literal_statements=True,  # docstrings
        rename_globals=True,
        hoist_literals=False,  # they are what compresses best
    )
    # This is zlib's format, compressed a little better, without its header and its checksum.
    packed = zopfli.zlib.compress(text.encode(), numiterations=1000)[2:-4]
    return _BOOT.format(base64.b64encode(packed).decode())


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and CI does not rewrite files: run this on your machine, and commit the changes.")
    program = small_program()
    pieces = textwrap.wrap(program, 110, drop_whitespace=False)
    lines = "\n".join("    " + (repr(piece) if '"' in piece else f'"{piece}"') for piece in pieces)
    CARRIED.write_text(_MODULE.format(digest=digest(), lines=lines), encoding="utf-8")
    print(f"wrote {CARRIED.relative_to(REPOSITORY)}: {len(program)} bytes")


if __name__ == "__main__":
    main()
