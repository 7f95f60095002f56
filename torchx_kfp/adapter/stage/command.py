"""The command of a stage: a program that runs before the application, and the application's own words.

A tracked stage's command is::

    env TORCHX_TRACKER_BASE=... \
        sh -ec SCRIPT SIGNATURE RUN_ID_FILE VALUES [PARENTS...] [UI_FILE UI_METADATA] [MASK] \
        [env NAME=VALUE...] [RETRIES...] WORDS...

``env`` comes first because older backends do not fill placeholders into a command's first element; it sets a variable
whose value is known only at run time. The script makes the run id, writes it to KFP's output, checks the run ids of
PARENTS, and ends with ``exec WORDS``, so that signals reach the application and the exit code is the application's.
WORDS are the application's entrypoint and arguments. An ``env`` before them sets the role's variables, because KFP's
cache key covers the command but not the container's environment. It also sets the variables of further trackers, which
replace those of the script. RETRIES (``retries``) start WORDS again if they fail.

A stage with outputs has a PUBLISHER (``carried.publisher``), which runs WORDS as its child and passes on signals and
the exit code. It also does what the script does, in a fraction of the text: the state of a run has six copies of each
stage's command (``semantics.nodes``). The script only says what is missing if there is no python3::

    env TORCHX_TRACKER_BASE=... [NAME=VALUE...] sh -ec SCRIPT SIGNATURE [UI_FILE UI_METADATA] \
        PUBLISHER... VALUES [env NAME=VALUE...] [RETRIES...] WORDS...

VALUES is the input ``stage`` (``stage_input``): the stage's name, the names that PARENTS lack, and the values of the
words that MASK marks. Everything else is the same for all stages of the same shape. KFP's backend stores such a
container once, with one component, and compares only the text of containers. So the text must differ if the components
do: SIGNATURE represents the component's inputs, their defaults and its outputs.

Scripts are constants; everything that comes from an AppDef is an argument. They run in dash, busybox and bash, do not
start processes (except ``mkdir`` if the output's folder is missing), and do not contain ``$(``, ``$$`` or ``{{``, which
the kubelet and Argo rewrite. ``torchx_kfp.pipeline.commands`` reads all forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchx_kfp.adapter.stage.stage_input import EARLY, Prefix
from torchx_kfp.adapter.values.channels import check_parts
from torchx_kfp.adapter.values.escapes import check_word, escape, find_rewritten
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError

#: Makes the run id ``<pipeline run>/<stage>/<pod>_<UID>``. A random UUID replaces names that are not set.
_RUN_ID = (
    "read -r _i </proc/sys/kernel/random/uuid; "
    f'export {protocol.JOB_ID}="${{{protocol.PIPELINE_RUN}:-$_i}}/${{2%%|*}}/${{{protocol.POD_NAME}:-$_i}}'
    f'${{{protocol.POD_UID}:+_${{{protocol.POD_UID}%%-*}}}}" '
    f'{protocol.TRACKERS}={protocol.TRACKER_NAME} {protocol.TRACKER_CONFIG}="${protocol.TRACKER_BASE}"; '
    f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; _v=$2; shift 2; '
)
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
_PYTHON = "command -v python3 >/dev/null || {{ echo 'torchx-kfp: {}' >&2; exit 127; }}; "
_OF_PUBLISHER = "results need python3 and fsspec in the image, or publish_results"
_OF_LAUNCHER = "a distributed stage needs python3 in the image, or a launcher_image"
_EXEC = 'exec "$@"'


def parameter_placeholder(name: str) -> str:
    """Return the placeholder for an input's value."""
    return f"{{{{$.inputs.parameters['{name}']}}}}"


def output_placeholder(name: str) -> str:
    """Return the placeholder for the path of an output parameter's file."""
    return f"{{{{$.outputs.parameters['{name}'].output_file}}}}"


def render(parts: Parts, inputs: Mapping[Reference, str]) -> str:
    """Return the parts as text for KFP, in which each reference is the placeholder for its input."""
    return "".join(part if isinstance(part, str) else parameter_placeholder(inputs[part]) for part in parts)


def application_words(
    entrypoint: Parts, args: Sequence[Parts], env: Mapping[str, Parts], where: str, *, first: bool
) -> tuple[tuple[Parts, ...], tuple[Parts, ...]]:
    """Return the words of ``env`` that set the application's variables, and the application's command line.

    Args:
        entrypoint: the program.
        args: its arguments.
        env: its variables.
        where: their place, for errors.
        first: whether these words begin the command. Older backends do not fill placeholders into the first one.

    Raises:
        AppDefError: ``env`` would take the entrypoint for a variable.
        ChannelError: an engine would change a variable.
    """
    assignments = [check_parts(_join((f"{name}=", *parts)), f"env[{name!r}] of {where}") for name, parts in env.items()]
    prefix: tuple[Parts, ...] = (("env",),) if env or (first and not _is_constant(entrypoint)) else ()
    if prefix and any(isinstance(part, str) and "=" in part for part in entrypoint):
        raise AppDefError(
            f"The entrypoint of {where} contains '=' ({_show(entrypoint)}), so the `env` before it takes it for a "
            "variable. Call it through a shell or a link without '='."
        )
    return (*prefix, *assignments), (entrypoint, *args)


def untracked_command(
    name: str,
    variables: Sequence[Parts],
    words: Sequence[Parts],
    inputs: Mapping[Reference, str],
    *,
    program: Sequence[str] = (),
    ui_metadata: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the application's words, after a script if something must be done before."""
    mask, texts = _join_words(variables, program, words, inputs)
    is_launcher = program[:1] == ("python3",)
    if not mask and not ui_metadata:
        return texts
    script = (
        (_UI_METADATA if ui_metadata else "")
        + (_PYTHON.format(_OF_LAUNCHER) if is_launcher else "")
        + (_DECODE if mask else "")
        + _EXEC
    )
    return ("sh", "-ec", script, name, *ui_metadata, *((mask,) if mask else ()), *texts)


def tracked_command(
    name: str,
    tracker_base: Parts,
    parents: Sequence[str],
    run_id_file: str,
    values: Parts,
    variables: Sequence[Parts],
    words: Sequence[Parts],
    inputs: Mapping[Reference, str],
    *,
    program: Sequence[str] = (),
    ui_metadata: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the application's words, after the protocol's variables and the script that makes the run id.

    Args:
        name: the script's name: see ``inputs.signature``.
        tracker_base: where results are stored.
        parents: the words from which the script builds the run ids that the stage reads: ``protocol.parent_words``.
        run_id_file: the file to which the run id is written, for KFP.
        values: the stage's name, and the values that parents and words lack: see ``stage_input.lift``.
        variables: the words that set the application's variables: see ``application_words``.
        words: the application's words: see ``application_words``.
        inputs: the name of each reference's input.
        program: words before ``words`` that are constant, or placeholders that KFP fills in.
        ui_metadata: the path and the escaped text of ``mlpipeline_ui_metadata``, if there is one.
    """
    mask, texts = _join_words(variables, program, words, inputs)
    is_launcher = program[:1] == ("python3",)
    script = (
        _RUN_ID
        + (_PARENTS if parents else "")
        + (_UI_METADATA if ui_metadata else "")
        + (_PYTHON.format(_OF_LAUNCHER) if is_launcher else "")
        + (_DECODE if mask else "")
        + _EXEC
    )
    return (
        "env",
        f"{protocol.TRACKER_BASE}={render(tracker_base, inputs)}",
        "sh",
        "-ec",
        script,
        name,
        run_id_file,
        render(values, inputs),
        *parents,
        *ui_metadata,
        *((mask,) if mask else ()),
        *texts,
    )


def published_command(
    name: str,
    tracker_base: Parts,
    values: Parts,
    variables: Sequence[Parts],
    words: Sequence[Parts],
    inputs: Mapping[Reference, str],
    publisher: Callable[[Mapping[str, Any]], Sequence[str]],
    *,
    program: Sequence[str] = (),
    ui_metadata: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the words of a tracked stage with outputs.

    Args:
        name: likewise all others: see ``tracked_command``.
        publisher: returns the words of the program around the application, which starts the stage, from the ``mask``
            and the number of variables, ``env``. It sets them for itself, too, because they may configure the storage.
    """
    early = [word for word in variables[1:] if _is_early(word)]
    late = [word for word in variables[1:] if not _is_early(word)]
    mask, texts = _join_words([*variables[:1], *late] if late else [], program, words, inputs)
    return (
        "env",
        f"{protocol.TRACKER_BASE}={render(tracker_base, inputs)}",
        *(render(word, inputs) for word in early),
        "sh",
        "-ec",
        (_UI_METADATA if ui_metadata else "") + _PYTHON.format(_OF_LAUNCHER if program else _OF_PUBLISHER) + _EXEC,
        name,
        *ui_metadata,
        *publisher({**({"mask": mask} if mask else {}), **({"env": len(late)} if late else {})}),
        render(values, inputs),
        *texts,
    )


def publisher_command(
    name: str,
    tracker_base: Parts,
    run_id: str,
    run_id_file: str,
    publisher: Sequence[str],
    inputs: Mapping[Reference, str],
) -> tuple[str, ...]:
    """Return the command of a stage that publishes the records of another stage's run."""
    return (
        "env",
        f"{protocol.TRACKER_BASE}={render(tracker_base, inputs)}",
        f"{protocol.JOB_ID}={run_id}",
        "sh",
        "-ec",
        f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; shift; '
        + _PYTHON.format(_OF_PUBLISHER)
        + _EXEC,
        name,
        run_id_file,
        *publisher,
    )


def _join_words(
    variables: Sequence[Parts], program: Sequence[str], words: Sequence[Parts], inputs: Mapping[Reference, str]
) -> tuple[str, tuple[str, ...]]:
    """Return the mask and the text of all words; those of the program need no script."""
    before, assignments = _encode(variables, inputs)
    after, texts = _encode(words, inputs)
    for word in program:
        check_word(word, "What the stage's own program is told, such as the roles of a distributed stage,")
    return (before + "s" * len(program) + after).rstrip("s"), (*assignments, *program, *texts)


def _encode(words: Sequence[Parts], inputs: Mapping[Reference, str]) -> tuple[str, tuple[str, ...]]:
    """Return a mask, and the words as text for KFP. ``v``: a value follows; ``b``: escaped; ``s``: neither."""
    mask, texts = "", []
    for parts in words:
        text = render(parts, inputs)
        escaped = _is_constant(parts) and find_rewritten(text) is not None
        mask += "v" if isinstance(parts[0], Prefix) else "b" if escaped else "s"
        texts.append(check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,"))
    return mask, tuple(texts)


def _is_early(parts: Parts) -> bool:
    """Return whether the word sets a variable that the program around the application needs when it starts."""
    escaped = _is_constant(parts) and find_rewritten(str(parts[0])) is not None
    return not escaped and EARLY.fullmatch(str(parts[0]).partition("=")[0]) is not None


def _is_constant(parts: Parts) -> bool:
    return len(parts) == 1 and isinstance(parts[0], str)


def _join(parts: Parts) -> Parts:
    """Join neighboring constants."""
    joined: list[str | Reference] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def _show(parts: Parts) -> str:
    return repr("".join(part if isinstance(part, str) else f"<{part.name}>" for part in parts))
