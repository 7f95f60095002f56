"""Make programs of ``torchx_kfp`` small enough to be carried by the commands of stages: see ``MODULES``.

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
import zlib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
#: The modules, by the names of their programs.
MODULES = {"PUBLISHER": "torchx_kfp.publisher", "LAUNCHER": "torchx_kfp.launcher", "ASK": "torchx_kfp.hpo.ask"}
SOURCES = {name: REPOSITORY / f"{module.replace('.', '/')}.py" for name, module in MODULES.items()}
CARRIED = REPOSITORY / "torchx_kfp" / "adapter" / "stage" / "carried.py"

#: Base85 is 6 % shorter than base64. Others take the place of characters that engines would rewrite, or that Go's JSON
#: would write as six.
_REPLACED = str.maketrans("$&<>{", ",./:[")
#: Removes the working directory from the path, where an application may have a zlib.py.
_BOOT = (
    "import sys;sys.path=[*filter(None,sys.path)];import base64,zlib;"
    'exec(zlib.decompress(base64.b85decode("{}".translate({})),-15))'
)

#: Matches code that is only for type checkers.
_TYPES = re.compile(r"^from __future__.*?\n|^TYPE_CHECKING = False\n.*?\n\n", re.DOTALL | re.MULTILINE)

_MODULE = '''"""Programs as arguments of ``python3 -c``. Do not edit: ``make goldens`` writes them."""

#: The SHA-256 of the texts of the modules from which the programs were made.
SOURCES = {digests}
'''
_PROGRAM = """
#: ``{module}``.
{name} = (
{lines}
)
"""


def digests() -> dict[str, str]:
    """Return the SHA-256 of the text of each module."""
    return {name: hashlib.sha256(source.read_bytes()).hexdigest() for name, source in SOURCES.items()}


def small_program(source: Path) -> str:
    """Return the module as an argument of ``python3 -c``."""
    import python_minifier
    import zopfli.zlib

    text = python_minifier.minify(
        _TYPES.sub("", source.read_text(encoding="utf-8")),
        remove_literal_statements=True,  # docstrings
        rename_globals=True,
        hoist_literals=False,  # they are what compresses best
    )
    # This is zlib's format, compressed a little better, without its header and its checksum.
    packed = zopfli.zlib.compress(text.encode(), numiterations=1000)[2:-4]
    back = ",".join(f"{new}:{old}" for old, new in _REPLACED.items())
    return _BOOT.format(base64.b85encode(packed).decode().translate(_REPLACED), f"{{{back}}}")


def text_of(program: str) -> str:
    """Return the minified text that a program carries."""
    packed = program.split('"')[1].translate({new: old for old, new in _REPLACED.items()})
    return zlib.decompress(base64.b85decode(packed), -15).decode()


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and CI does not rewrite files: run this on your machine, and commit the changes.")
    known = "".join(f'\n    "{name}": "{digest}",' for name, digest in digests().items())
    text = _MODULE.format(digests=f"{{{known}\n}}")
    for name, source in SOURCES.items():
        program = small_program(source)
        pieces = textwrap.wrap(program, 110, drop_whitespace=False)
        lines = "\n".join("    " + (repr(piece) if '"' in piece else f'"{piece}"') for piece in pieces)
        text += _PROGRAM.format(module=MODULES[name], name=name, lines=lines)
        print(f"{name}: {len(program)} bytes")
    CARRIED.write_text(text, encoding="utf-8")
    print(f"wrote {CARRIED.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
