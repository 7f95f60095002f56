"""The shell programs of a stage's command, and their words: see ``command``."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes

from torchx_kfp.contract import protocol
from torchx_kfp.errors import TrackerError

#: Matches the name of a script: the version of the command's form, the letters of the script's parts, and a digest.
_NAME = re.compile(r"torchx-kfp-1-([a-z]*)-[0-9a-f]{8}")

# Scripts have few quotes and characters that Go escapes, because the state of a run has them as JSON in JSON.

#: Finds the pipeline run of a stage with artifacts in their paths, ``<pipeline>/<run>/<task>/<UUID>/<name>``. A
#: variable for a field of the pod would take 240 bytes of the pipeline for each stage.
_RUN = (
    "_r=${1%/*/*/*}; _r=${_r##*/}; shift; "
    f"case $_r in ????????-????-????-????-????????????) : ${{{protocol.PIPELINE_RUN}:=$_r}};; esac; "
)
#: Writes an execution id.
_WRITE = f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; shift; '
#: Makes the execution id ``<pipeline run>/<stage>/<pod>_<UID>``. A random UUID replaces names that are not set.
_RUN_ID = (
    "read -r _i </proc/sys/kernel/random/uuid; set -a; "
    f"{protocol.JOB_ID}=${{{protocol.PIPELINE_RUN}:-$_i}}/${{2%%|*}}/${{{protocol.POD_NAME}:-$_i}}"
    f"${{{protocol.POD_UID}:+_${{{protocol.POD_UID}%%-*}}}} "
    f"{protocol.TRACKERS}={protocol.TRACKER_NAME} {protocol.TRACKER_CONFIG}=${protocol.TRACKER_BASE}; set +a; "
    f"{_WRITE}_v=$1; shift; "
)
#: Makes the JSON object of parents from the next values, the aliases, and ``parent_words``. An execution id can be any
#: text: with a quote, or a list that ends early, it could add an alias that the pipeline does not declare.
_PARENTS = (
    "_q='\"' _j= _s={; while [ \"$1\" ]; do case $1 in *'\\'*|\\ $_q*$_q*$_q|\\ [[]*]?*) ;; "
    "\\ $_q*$_q|\\ [[]*]) _v=${_v#*|}; _j=$_j$_s$_q${_v%%|*}$_q:$1; _s=,\\ ; shift; continue;; esac; "
    'echo torchx-kfp: not an execution id:"$1" >&2; exit 2; done; shift; '
    # The first execution id follows the first alias, alone or as the first item of a list.
    f"_p=${{_j#*$_q: }}; _p=${{_p#[}}; _i=${{_p#?}}; set -a; {protocol.PARENT_RUN_IDS}=$_j}}; "
    f"case $_p in $_q*) {protocol.PARENT_RUN_ID}=${{_i%%$_q*}};; esac; set +a; "
)
#: Appends the next value to each word with ``v`` in the mask, and decodes each word with ``b``. The ``x`` protects
#: newlines at the end of a word.
_DECODE = (
    "_m=$1; shift; for _w do shift; "
    'case $_m in v*) _v=${_v#*|}; _w=$_w${_v%%|*};; b*) _w=`printf %bx "$_w"`; _w=${_w%x};; esac; '
    'set -- "$@" "$_w"; _m=${_m#?}; done; '
)
#: Adds a message to that of the shell if the image does not have Python.
_PYTHON = "hash python3 || {{ echo 'torchx-kfp: {}' >&2; exit 125; }}; "
OF_PUBLISHER = "results need python3 and fsspec in the image, or publish_results"
OF_MAY_FAIL = "may_fail needs python3 and fsspec in the image"
OF_LAUNCHER = "a distributed stage needs python3 in the image, or a launcher_image"

#: The parts of a script in their order: find the pipeline run, make an execution id or write that of another stage,
#: check parents, and decode words.
FINDS_RUN, MAKES_RUN_ID, COPIES_RUN_ID, HAS_PARENTS, HAS_MASK = "frcpm"
_PARTS = {
    FINDS_RUN: _RUN,
    MAKES_RUN_ID: _RUN_ID,
    COPIES_RUN_ID: _WRITE,
    HAS_PARENTS: _PARENTS,
    HAS_MASK: _DECODE,
}

#: The program that starts an application again. It runs in dash, busybox and bash. A shell handles signals only while
#: it waits for a background child. Without job control, it starts such a child with SIGINT ignored, so the child gets
#: SIGTERM for each signal that ends a stage. ``wait`` returns early on a signal, with 143. If the child has just ended,
#: only another ``wait`` has its exit code (127: the first one had it; -1: bash 5.2 lost it). A signal during the start
#: of the child is sent again, because the child may still be the shell, which loses it. ``_n`` has a character for each
#: attempt, because the kubelet rewrites shell arithmetic. A stage that was asked to end is not started again. User
#: signals (``_u``) are passed on unchanged.
_RETRIES = (
    "_k= _n=x%s; trap '_k=1;kill $!' 1 2 15; trap '_u=1;kill -USR1 $!' USR1; trap '_u=1;kill -USR2 $!' USR2; "
    'while "$@"& [ ! $_k ]||kill $!; while _u=;wait $!;_c=$?;[ $_k$_u ]&&kill -0 $!;do :;done 2>&-; '
    "[ ! $_k$_u ]||{ wait $!;_d=$?;case $_d in 127|-1);;*)_c=$_d;esac;} 2>&-; "
    "[ ! $_k ]&&[ $_c != 0 ]&&[ ${#_n} -lt %d ];do _n=x$_n; "
    "echo torchx-kfp: attempt ${#_n} of %d: the application ended with exit code $_c >&2%s;done;exit $_c"
)
_FIRST_RUN_ID = f" _r=${protocol.JOB_ID}"
_NEXT_RUN_ID = f'; {protocol.JOB_ID}=${{_r}}_${{#_n}};printf %s ${protocol.JOB_ID} >"$0"'
_RETRIES_BEGIN, _ATTEMPTS = "_k= _n=x", re.compile(r" -lt (\d+) ")


def script_words(parts: Collection[str], digest: str, needs_python: str = "") -> tuple[str, ...]:
    """Return the words that run a script, from the letters of its parts; its arguments follow.

    Shells print the component's ``digest``, in the script's name, before their messages. ``needs_python`` is the
    message for an image without python3; empty if the stage does not need it.
    """
    has = "".join(part for part in _PARTS if part in parts)
    check = _PYTHON.format(needs_python) if needs_python else ""
    text = "".join([*map(_PARTS.__getitem__, has), check, 'exec "$@"'])
    return ("sh", "-ec", text.replace("; ", ";"), f"torchx-kfp-1-{has}-{digest}")


def find_script(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the letters of a command's script, and the position of its first argument; None without a script."""
    at = words.index("-ec") + 3 if "-ec" in words else 0
    match = _NAME.fullmatch(words[at - 1]) if 0 < at <= len(words) else None
    return (match[1], at) if match else None


def parent_words(parents: Iterable[str]) -> list[str]:
    """Return the words for the execution ids of parents: JSON after a blank each, and an empty word."""
    return [*map(" {}".format, parents), ""]


def parents_in(aliases: Sequence[str], words: Sequence[str]) -> Mapping[str, protocol.RunIds]:
    """Return the execution ids in these words, except the last; {} for placeholders."""
    members = (f'"{alias}":{text}' for alias, text in zip(aliases, words, strict=False))
    with contextlib.suppress(TrackerError):
        return protocol.decode_parents(f"{{{','.join(members)}}}")
    return {}


#: The first file of a workspace's archive (``contract.carried.workspace``), and the bounds of its content there.
UNPACKER, _UNPACKER_FROM, _UNPACKER_TO = ".torchx_kfp/unpack.py", 512, 8704
#: Fetches the archive from the URL ``$0``, or ``CODE_URL`` if ``$0`` is the name of the stage's code. It checks the
#: digest, and then runs the unpacker in the archive, with the archive as ``f`` and the words after ``$0``. It retries
#: S3 as long as ``storage.open_storage``. Without a URL, the image needs nothing. The working directory is removed from
#: the path, because it may have modules with names of the standard library.
_WORKSPACE = f"""[ -z "$0" ]||{{ hash python3||{{ echo torchx-kfp: a workspace needs python3 and fsspec >&2
exit 125;}};exec python3 -c "import os,sys
sys.path=[*filter(None,sys.path)]
u=sys.argv[1]
try:
 if u[:5]=='code:':u=os.environ['{protocol.CODE_URL}']
 import fsspec,hashlib
 fsspec.config.conf.setdefault('s3',{{}}).setdefault('config_kwargs',{{}}).setdefault('retries',{{'total_max_attempts':7}})
 f,p=fsspec.core.url_to_fs(u)
 f=f.cat_file(p)
 h=hashlib.sha256(f).hexdigest()
 if h not in u or f[:12]!=b'{UNPACKER[:12]}':raise ValueError('it was changed, or has an earlier form; its digest: '+h)
 exec(f[{_UNPACKER_FROM}:{_UNPACKER_TO}])
except Exception as e:print('torchx-kfp: the workspace',u,'cannot be used:',repr(e),file=sys.stderr)
sys.exit(125)" "$0" "$@";}};exec "$@\""""


def unpacker_file() -> bytes:
    """Return the content of ``UNPACKER``: the module, padded to the length read."""
    return (Path(__file__).parent / "carried" / "workspace.py").read_bytes().ljust(_UNPACKER_TO - _UNPACKER_FROM, b"\n")


def workspace_words(url: str) -> tuple[str, ...]:
    """Return the words before an application that starts in a workspace. With an empty URL, it starts where it is."""
    return ("sh", "-c", _WORKSPACE, url)


def workspace_in(words: Sequence[str]) -> str | None:
    """Return the URL of a workspace at the beginning of these words, which may be empty; None without a workspace."""
    return words[3] if len(words) > 3 and words[2] == _WORKSPACE else None


def workspaces_in(words: Sequence[str]) -> list[str]:
    """Return the URLs or names of all workspaces in a command, including those of a launcher's replicas."""
    return [url for script, url in itertools.pairwise(words) if script == _WORKSPACE]


def retry_words(retries: int, run_id_file: str | None) -> tuple[str, ...]:
    """Return the words before an application that is started again up to ``retries`` times if it fails.

    KFP's own retries do not do this: with stock manifests of KFP 2.17, an application's exit code is not an error for
    Argo. Each attempt of a tracked stage has its own execution id, which replaces that in KFP's output, so the records
    of a failed attempt are not read: ``run_id_file`` is the placeholder for that output.
    """
    if not retries:
        return ()
    first, following = ("", "") if run_id_file is None else (_FIRST_RUN_ID, _NEXT_RUN_ID)
    return ("sh", "-c", _RETRIES % (first, retries + 1, retries + 1, following), run_id_file or "sh")


def retries_in(words: Sequence[str]) -> int:
    """Return the number of retries of a program at the beginning of these words; 0 without one."""
    match = _ATTEMPTS.search(words[2]) if len(words) > 3 and words[2].startswith(_RETRIES_BEGIN) else None
    return int(match[1]) - 1 if match else 0


#: The placeholder for a workspace's URL if the AppDef names folders of the author's machine: ``run`` and ``submit``
#: pack them, and fill in the URL. Neither YAML, JSON nor a shell has to quote it.
_FOLDERS = re.compile(r"torchx-kfp-folders:([A-Za-z0-9_.~%/=+-]+)")


def folders_placeholder(folders: Mapping[str, str]) -> str:
    """Return the placeholder for these folders: {absolute path: path in the workspace}."""
    pairs = (f"{quote(os.fsencode(folder))}={quote(target)}" for folder, target in folders.items())
    return f"torchx-kfp-folders:{'+'.join(pairs)}"


def find_folders(text: str) -> dict[str, dict[str, str]]:
    """Return the folders of each placeholder in a text."""
    found: dict[str, dict[str, str]] = {}
    for placeholder in _FOLDERS.finditer(text):
        pairs = (pair.partition("=") for pair in placeholder[1].split("+"))
        found[placeholder[0]] = {os.fsdecode(unquote_to_bytes(path)): unquote(target) for path, _, target in pairs}
    return found


def fill_in_folders(text: str, urls: Mapping[str, str]) -> str:
    """Replace the placeholders in a text by URLs."""
    return _FOLDERS.sub(lambda placeholder: urls[placeholder[0]], text)
