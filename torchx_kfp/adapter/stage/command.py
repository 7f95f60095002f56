"""The command of a stage: what runs before the application, and the application's own words.

A tracked stage's command is::

    env TORCHX_TRACKER_BASE=... \
        sh -ec SCRIPT SIGNATURE RUN_ID_FILE VALUES [PARENTS...] [UI_FILE UI_METADATA] [MASK] \
        [env NAME=VALUE...] [PUBLISHER...] WORDS...

``env`` comes first because older backends fill no placeholder into a command's first element, and it sets what is known
at run time only. The script makes the run id, writes it to KFP's output, checks the run ids of PARENTS, and ends in
``exec WORDS``, so that signals and the exit code are the application's. WORDS are the application's entrypoint and
arguments. The role's variables are set by an ``env`` before them: KFP's cache key covers a command, not a container's
environment. Those of further trackers are too, and replace the script's own. PUBLISHER is there where the stage has
results or artifacts that become outputs of KFP: it runs WORDS as its child, and signals and the exit code pass through
it (``torchx_kfp.publisher``).

VALUES is the input ``stage``: the stage's name, names that PARENTS lack, and values that the words marked in MASK lack
(``values``). What is left is the same for all stages of one shape, and KFP's backend keeps such a container once, with
one component: it asks for the container's text alone. So the text tells containers apart whose components differ:
SIGNATURE is that of the component's inputs, their defaults and its outputs.

Scripts are constants; whatever comes from an AppDef is an argument. They run in dash, busybox and bash, start no
process but ``mkdir`` where the output's folder is missing, and hold neither ``$(``, ``$$`` nor ``{{``, which the
kubelet and Argo rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchx_kfp import protocol
from torchx_kfp.adapter.stage.stage_input import Prefix
from torchx_kfp.adapter.values.channels import check_parts
from torchx_kfp.adapter.values.escapes import check_word, escape, find_rewritten
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.errors import AppDefError

#: The run id is ``<pipeline run>/<stage>/<pod>``, a random UUID for what the engine does not tell.
_RUN_ID = (
    "read -r _i </proc/sys/kernel/random/uuid; "
    f'export {protocol.JOB_ID}="${{{protocol.PIPELINE_RUN}:-$_i}}/${{2%% *}}/${{{protocol.POD_NAME}:-$_i}}" '
    f'{protocol.TRACKERS}={protocol.TRACKER_NAME} {protocol.TRACKER_CONFIG}="${protocol.TRACKER_BASE}"; '
    f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; _v=$2; shift 2; '
)
#: Puts the next values where the text of parents has no names.
_NAMES = (
    "while case $_t in *'\"\"'*) ;; *) false;; esac; do _v=${_v#* }; "
    '_t=${_t%%\'""\'*}\\"${_v%% *}\\"${_t#*\'""\'}; done; '
)
#: Makes the JSON object of parents of constant text and run ids in turn (``protocol.parent_words``). A run id may be
#: any text: one with a quote, or a list that ends early, would make an alias that the pipeline does not declare.
_PARENTS = (
    f'_t=$1; {_NAMES}_j="{{$_t"; shift; while case $_j in *\\}}) false;; esac; do '
    # What stands before the value, a quote or a blank, and the value: neither quotes nor backslashes, or a whole list.
    'case ${_j#"${_j%?}"}$1 in \\"*[\\"\\\\]*|\\ |\\ [![]*|\\ *[!]]|\\ *]?*|\\ *[\\\\]*) '
    'printf "torchx-kfp: not a run id: %s\\n" "$1" >&2; exit 2;; esac; '
    f"_t=$2; {_NAMES}_j=$_j$1$_t; shift 2; done; "
    # The first run id: behind the first alias, alone or as the first of a list.
    f'export {protocol.PARENT_RUN_IDS}="$_j"; _p=${{_j#*\\": }}; _p=${{_p#[}}; '
    f'case $_p in \\"*) _p=${{_p#?}}; export {protocol.PARENT_RUN_ID}="${{_p%%[\\"]*}}";; esac; '
)
#: Completes the words that the mask marks with ``v`` by the next value, and decodes these and the words marked ``b``.
#: The ``x`` keeps newlines at a word's end.
_DECODE = (
    "_m=$1; shift; for _w do shift; "
    "case $_m in v*) _v=${_v#* }; _w=$_w${_v%% *};; esac; "
    'case $_m,$_w in [bv]*,*\\\\*) _w=`printf %bx "$_w"`; _w=${_w%x};; esac; '
    'set -- "$@" "$_w"; _m=${_m#?}; done; '
)
#: Writes KFP v1's description of what its UI shall show of the task.
_UI_METADATA = '[ -d "${1%/*}" ] || mkdir -p "${1%/*}"; printf %b "$2" >"$1"; shift 2; '
#: Says what is wrong where nothing else could.
_PYTHON = (
    "command -v python3 >/dev/null || { echo 'torchx-kfp: results need python3 and fsspec in the image, or "
    "publish_results' >&2; exit 127; }; "
)
_EXEC = 'exec "$@"'


def parameter_placeholder(name: str) -> str:
    """What KFP replaces by an input's value."""
    return f"{{{{$.inputs.parameters['{name}']}}}}"


def output_placeholder(name: str) -> str:
    """What KFP replaces by the path of an output parameter's file."""
    return f"{{{{$.outputs.parameters['{name}'].output_file}}}}"


def render(parts: Parts, inputs: Mapping[Reference, str]) -> str:
    """The parts as KFP's text, each reference by the name of its input."""
    return "".join(part if isinstance(part, str) else parameter_placeholder(inputs[part]) for part in parts)


def application_words(
    entrypoint: Parts, args: Sequence[Parts], env: Mapping[str, Parts], where: str, *, first: bool
) -> tuple[tuple[Parts, ...], tuple[Parts, ...]]:
    """The words of ``env`` that set the application's variables, and the application's command line.

    Args:
        entrypoint: the program.
        args: its arguments.
        env: its variables.
        where: their place, for errors.
        first: whether these words begin the command; older backends fill no placeholder into a command's first one.

    Raises:
        AppDefError: an entrypoint that ``env`` takes for a variable.
        ChannelError: a variable that an engine would change.
    """
    assignments = [check_parts(_join((f"{name}=", *parts)), f"env[{name!r}] of {where}") for name, parts in env.items()]
    prefix: tuple[Parts, ...] = (("env",),) if env or (first and not _is_constant(entrypoint)) else ()
    if prefix and any(isinstance(part, str) and "=" in part for part in entrypoint):
        raise AppDefError(
            f"The entrypoint of {where} holds '=' ({_show(entrypoint)}), which the `env` before it takes for a "
            "variable. Call it through a shell or a link without '='."
        )
    return (*prefix, *assignments), (entrypoint, *args)


def untracked_command(
    name: str,
    variables: Sequence[Parts],
    words: Sequence[Parts],
    inputs: Mapping[Reference, str],
    *,
    ui_metadata: Sequence[str] = (),
) -> tuple[str, ...]:
    """The application's words themselves, behind a script only where there is something to do before."""
    mask, texts = _encode((*variables, *words), inputs)
    mask = mask.rstrip("s")
    if not mask and not ui_metadata:
        return texts
    script = (_UI_METADATA if ui_metadata else "") + (_DECODE if mask else "") + _EXEC
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
    publisher: Sequence[str] = (),
    ui_metadata: Sequence[str] = (),
) -> tuple[str, ...]:
    """The application's words behind the protocol's variables and the script that makes the run id.

    Args:
        name: the script's; see ``inputs.signature``.
        tracker_base: where results are stored.
        parents: what the script puts the stages together from that are read: ``protocol.parent_words``.
        run_id_file: where the run id is written to, for KFP.
        values: the stage's name, and what parents and words lack; see ``values.lift``.
        variables: the words before the application's that set its variables.
        words: the application's; see ``application_words`` for both.
        inputs: the name of each reference's input.
        publisher: the words of the program around the application, if there is one. It has the application's
            variables too: they may say how the storage is reached.
        ui_metadata: the path and the escaped text of ``mlpipeline_ui_metadata``, if there is any.
    """
    before, assignments = _encode(variables, inputs)
    after, texts = _encode(words, inputs)
    mask = (before + "s" * len(publisher) + after).rstrip("s")
    script = (
        _RUN_ID
        + (_PARENTS if parents else "")
        + (_UI_METADATA if ui_metadata else "")
        + (_PYTHON if publisher else "")
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
        *assignments,
        *publisher,
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
    """The command of a stage that publishes what the run of another stage has recorded."""
    return (
        "env",
        f"{protocol.TRACKER_BASE}={render(tracker_base, inputs)}",
        f"{protocol.JOB_ID}={run_id}",
        "sh",
        "-ec",
        f'[ -d "${{1%/*}}" ] || mkdir -p "${{1%/*}}"; printf %s "${protocol.JOB_ID}" >"$1"; shift; {_PYTHON}{_EXEC}',
        name,
        run_id_file,
        *publisher,
    )


def _encode(words: Sequence[Parts], inputs: Mapping[Reference, str]) -> tuple[str, tuple[str, ...]]:
    """A mask and the words as KFP's text: ``v`` where a value follows, ``b`` where it is escaped, ``s`` otherwise."""
    mask, texts = "", []
    for parts in words:
        text = render(parts, inputs)
        escaped = _is_constant(parts) and find_rewritten(text) is not None
        mask += "v" if isinstance(parts[0], Prefix) else "b" if escaped else "s"
        texts.append(check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,"))
    return mask, tuple(texts)


def _is_constant(parts: Parts) -> bool:
    return len(parts) == 1 and isinstance(parts[0], str)


def _join(parts: Parts) -> Parts:
    """The parts with neighbouring constants joined."""
    joined: list[str | Reference] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def _show(parts: Parts) -> str:
    return repr("".join(part if isinstance(part, str) else f"<{part.name}>" for part in parts))
