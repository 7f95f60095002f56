"""The shell programs of a stage's command, and the words with which they begin: see ``command``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.contract import protocol

#: The version of commands that are written.
VERSION = 1
#: Only later releases read commands whose signature names a version.
_SIGNATURE = re.compile(r"torchx-kfp-[0-9a-f]{8}")

#: Makes the run id ``<pipeline run>/<stage>/<pod>_<UID>``. A random UUID replaces names that are not set.
_RUN_ID = (
    "read -r _i </proc/sys/kernel/random/uuid; "
    f'export {protocol.JOB_ID}="${{{protocol.PIPELINE_RUN}:-$_i}}/${{2%%|*}}/${{{protocol.POD_NAME}:-$_i}}'
    f'${{{protocol.POD_UID}:+_${{{protocol.POD_UID}%%-*}}}}" '
    f'{protocol.TRACKERS}={protocol.TRACKER_NAME} {protocol.TRACKER_CONFIG}="${protocol.TRACKER_BASE}"; '
    f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; _v=$2; shift 2; '
)
#: Writes the run id of another stage.
_OTHER_RUN_ID = f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; shift; '
#: Puts the next values into the text of parents wherever a name is missing.
_NAMES = (
    "while case $_t in *'\"\"'*) ;; *) false;; esac; do _v=${_v#*|}; "
    '_t=${_t%%\'""\'*}\\"${_v%%|*}\\"${_t#*\'""\'}; done; '
)
#: Makes the JSON object of parents, from constant text and run ids in turn (``protocol.parent_words``). A run id may be
#: any text: with a quote, or a list that ends early, it could add an alias that the pipeline does not declare.
_PARENTS = (
    f'_t=$1; {_NAMES}_j="{{$_t"; shift; while case $_j in *\\}}) false;; esac; do '
    # After a quote, the value must not contain quotes or backslashes. After a blank, it must be a whole list.
    'case ${_j#"${_j%?}"}$1 in \\"*[\\"\\\\]*|\\ |\\ [![]*|\\ *[!]]|\\ *]?*|\\ *[\\\\]*) '
    'printf "torchx-kfp: not a run id: %s\\n" "$1" >&2; exit 2;; esac; '
    f"_t=$2; {_NAMES}_j=$_j$1$_t; shift 2; done; "
    # The first run id follows the first alias, by itself or as the first item of a list.
    f'export {protocol.PARENT_RUN_IDS}="$_j"; _p=${{_j#*\\": }}; _p=${{_p#[}}; '
    f'case $_p in \\"*) _p=${{_p#?}}; export {protocol.PARENT_RUN_ID}="${{_p%%[\\"]*}}";; esac; '
)
#: Appends the next value to each word that the mask marks with ``v``, and decodes these words and those that it marks
#: with ``b``. The ``x`` protects newlines at the end of a word.
_DECODE = (
    "_m=$1; shift; for _w do shift; "
    "case $_m in v*) _v=${_v#*|}; _w=$_w${_v%%|*};; esac; "
    'case $_m,$_w in [bv]*,*\\\\*) _w=`printf %bx "$_w"`; _w=${_w%x};; esac; '
    'set -- "$@" "$_w"; _m=${_m#?}; done; '
)
#: Writes KFP v1's UI metadata, which tells the UI what to show.
_UI_METADATA = '[ -d "${1%/*}" ] || mkdir -p "${1%/*}"; printf %b "$2" >"$1"; shift 2; '
#: Prints a message if the image has no Python to do so.
_PYTHON = "command -v python3 >/dev/null || {{ echo 'torchx-kfp: {}' >&2; exit 125; }}; "
OF_PUBLISHER = "results need python3 and fsspec in the image, or publish_results"
OF_MAY_FAIL = "may_fail needs python3 and fsspec in the image"
OF_LAUNCHER = "a distributed stage needs python3 in the image, or a launcher_image"
_EXEC = 'exec "$@"'

#: The marks of a script, in all versions, if it has one of these parts.
_SIGNS = {
    "has_stage": "/$0/",
    "makes_run_id": "_v=$2",
    "copies_run_id": f'"${protocol.JOB_ID}" >"$1"; shift; ',
    "has_parents": "_j=",
    "shows": 'printf %b "$2"',
    "has_mask": "_m=$1",
}
#: The marks of scripts of version 0: their name is the stage's, or spaces separate the values.
_OLD = re.compile(rf'export {protocol.JOB_ID}="[^"]*/(\$0|\${{2%% \*}})/')

#: The program that starts an application again. It runs in dash, busybox and bash. A shell handles signals only while
#: it waits for a child in the background. Without job control, it starts such a child with SIGINT ignored, so the child
#: gets SIGTERM for each signal that ends a stage. ``wait`` returns early on a signal, with 143; if the child ends at
#: once, only another ``wait`` has its exit code (127: the first one had it; -1: bash 5.2 has lost it). A signal that
#: comes while the child is being started is passed on once more, because the child may still be the shell, which loses
#: it. ``_n`` has a character for each attempt, because the kubelet rewrites what shells use for arithmetic. A stage
#: that was asked to end is not started again.
_RETRIES = (
    "_k= _n=x%s; trap '_k=1;kill $!' 1 2 15; "
    'while "$@"& [ ! $_k ]||kill $!; while wait $!;_c=$?;[ $_k ]&&kill -0 $!;do :;done 2>&-; '
    "[ ! $_k ]||{ wait $!;_d=$?;case $_d in 127|-1);;*)_c=$_d;esac;} 2>&-; "
    "[ ! $_k ]&&[ $_c != 0 ]&&[ ${#_n} -lt %d ];do _n=x$_n; "
    "echo torchx-kfp: attempt ${#_n} of %d: the application ended with exit code $_c >&2%s;done;exit $_c"
)
_FIRST_RUN_ID = f" _r=${protocol.JOB_ID}"
_NEXT_RUN_ID = f'; {protocol.JOB_ID}=${{_r}}_${{#_n}};printf %s ${protocol.JOB_ID} >"$0"'
_RETRIES_BEGIN, _ATTEMPTS = "_k= _n=x", re.compile(r" -lt (\d+) ")


@dataclass(frozen=True)
class Script:
    """The program that ``sh -ec`` runs in a stage.

    ``has_stage`` tells whether its name is the stage's, as in version 0. ``makes_run_id`` and ``copies_run_id`` tell
    whether the stage has its own run id or another stage's, ``has_parents`` whether it reads stages, ``shows`` whether
    it has UI metadata, and ``has_mask`` whether words are to be decoded. ``needs_python`` is the message for an image
    without python3.
    """

    has_stage: bool = False
    makes_run_id: bool = False
    copies_run_id: bool = False
    has_parents: bool = False
    shows: bool = False
    has_mask: bool = False
    needs_python: str = ""
    version: int = VERSION

    def words(self, signature: str) -> tuple[str, ...]:
        """Return the words that run the program; its arguments follow."""
        parts = (
            _RUN_ID if self.makes_run_id else "",
            _OTHER_RUN_ID if self.copies_run_id else "",
            _PARENTS if self.has_parents else "",
            _UI_METADATA if self.shows else "",
            _PYTHON.format(self.needs_python) if self.needs_python else "",
            _DECODE if self.has_mask else "",
            _EXEC,
        )
        return ("sh", "-ec", "".join(parts), signature)

    @classmethod
    def find(cls, words: Sequence[str]) -> tuple[Script, int] | None:
        """Return a command's script, and the place of its first argument; None if this module did not write it."""
        at = words.index("-ec") + 3 if "-ec" in words else 0
        if not 0 < at <= len(words):
            return None
        text, is_old = words[at - 2], _OLD.search(words[at - 2]) is not None
        if not is_old and not _SIGNATURE.fullmatch(words[at - 1]):
            return None
        parts: dict[str, Any] = {part: sign in text for part, sign in _SIGNS.items()}
        return cls(**parts, version=0 if is_old else VERSION), at


def signature(description: str) -> str:
    """Return the script's name, which differs for components with different descriptions.

    Shells print it before their messages.
    """
    return f"torchx-kfp-{hashlib.sha256(description.encode(errors='surrogatepass')).hexdigest()[:8]}"


def assignment(tracker_base: str) -> str:
    """Return the word of ``env`` that sets the tracker base."""
    return f"{protocol.TRACKER_BASE}={tracker_base}"


def assigned(words: Sequence[str]) -> tuple[str, ...]:
    """Return the tracker bases that words of a command set."""
    name = assignment("")
    return tuple(word.removeprefix(name) for word in words if word.startswith(name))


#: The file at the beginning of a workspace's archive, and where its text is there: a program of ``contract.carried``.
UNPACKER, _UNPACKER_FROM, _UNPACKER_TO = ".torchx_kfp/unpack.py", 512, 4096
#: Fetches the archive whose URL is ``$0``, checks its digest, and only then runs the unpacker that is in the archive,
#: with the archive as ``f`` and the words after the URL. Without a URL, the image needs nothing. The working directory
#: may have modules with the names of Python's, and an archive of an earlier form begins with a file of the workspace.
_WORKSPACE = f"""[ -z "$0" ]||{{ hash python3||{{ echo torchx-kfp: a workspace needs python3 and fsspec >&2
exit 125;}};exec python3 -c "import sys
sys.path=[*filter(None,sys.path)]
u=sys.argv[1]
try:
 import fsspec,hashlib
 f,p=fsspec.core.url_to_fs(u)
 f=f.cat_file(p)
 h=hashlib.sha256(f).hexdigest()
 if h not in u or f[:12]!=b'{UNPACKER[:12]}':raise ValueError('it was changed, or has an earlier form; its digest: '+h)
 exec(f[{_UNPACKER_FROM}:{_UNPACKER_TO}])
except Exception as e:print('torchx-kfp: the workspace',u,'cannot be used:',repr(e),file=sys.stderr)
sys.exit(125)" "$0" "$@";}};exec "$@\""""


def unpacker_file(program: str) -> bytes:
    """Return the content of ``UNPACKER``: the text of the program, as long as a stage reads."""
    content = program.encode().ljust(_UNPACKER_TO - _UNPACKER_FROM, b"\n")
    assert len(content) == _UNPACKER_TO - _UNPACKER_FROM
    return content


def workspace_words(url: str) -> tuple[str, ...]:
    """Return the words before an application that starts in a workspace, or where it is if the URL is empty.

    Args:
        url: where the workspace is, or a placeholder.
    """
    return ("sh", "-c", _WORKSPACE, url)


def workspace_in(words: Sequence[str]) -> str | None:
    """Return the URL at the beginning of these words, which may be empty; None if there are no such words."""
    return words[3] if len(words) > 3 and words[2] == _WORKSPACE else None


def retry_words(retries: int, run_id_file: str | None) -> tuple[str, ...]:
    """Return the words before an application that is started again up to ``retries`` times if it fails.

    KFP's own retries do not do this: on stock manifests of KFP 2.17, an application's exit code is not an error to
    Argo. Each attempt of a tracked stage has its own run id, which replaces the one in KFP's output, so nobody reads
    what a failed attempt has recorded.

    Args:
        retries: the number of further attempts.
        run_id_file: the placeholder for the file with the run id of a tracked stage.
    """
    if not retries:
        return ()
    first, following = ("", "") if run_id_file is None else (_FIRST_RUN_ID, _NEXT_RUN_ID)
    return ("sh", "-c", _RETRIES % (first, retries + 1, retries + 1, following), run_id_file or "sh")


def retries_in(words: Sequence[str]) -> int:
    """Return how often a program at the beginning of these words starts the application again; 0 if there is none."""
    found = _ATTEMPTS.search(words[2]) if len(words) > 3 and words[2].startswith(_RETRIES_BEGIN) else None
    return int(found[1]) - 1 if found else 0
