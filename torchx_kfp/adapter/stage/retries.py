"""The program that starts an application again if it fails: ``max_retries`` of a role whose pod KFP makes.

It stands between the stage's script, or the program that publishes results, and the application::

    sh -c SCRIPT RUN_ID_FILE WORDS...

KFP's own retries do not do this: on stock manifests of KFP 2.17, an application's exit code is not an error to Argo.
Each attempt of a tracked stage has a run id of its own, which replaces the one in KFP's output, so nobody reads what a
failed attempt has recorded.
"""

from __future__ import annotations

from torchx_kfp.contract import protocol

#: Runs in dash, busybox and bash. A shell handles signals only while it waits for a child in the background. Without
#: job control, it starts such a child with SIGINT ignored, so the child gets SIGTERM for each signal that ends a stage.
#: ``wait`` returns early on a signal. One that comes while the child is being started is passed on once more, because
#: the child may still be the shell, which loses it. ``_n`` has a character for each attempt, because the kubelet
#: rewrites what shells use for arithmetic. A stage that was asked to end is not started again.
_SCRIPT = (
    "_k= _n=x%s; trap '_k=1;kill $!' 1 2 15; "
    'while "$@"& [ ! $_k ]||kill $!; while wait $!;_c=$?;[ $_k ]&&kill -0 $!;do :;done 2>&-; '
    "[ ! $_k ]&&[ $_c != 0 ]&&[ ${#_n} -lt %d ];do _n=x$_n; "
    "echo torchx-kfp: attempt ${#_n} of %d: the application ended with exit code $_c >&2%s;done;exit $_c"
)
_FIRST_RUN_ID = f" _r=${protocol.JOB_ID}"
_NEXT_RUN_ID = f'; {protocol.JOB_ID}=${{_r}}_${{#_n}};printf %s ${protocol.JOB_ID} >"$0"'


def retry_words(retries: int, run_id_file: str | None) -> tuple[str, ...]:
    """Return the words before an application that is started again up to ``retries`` times if it fails.

    Args:
        retries: how often.
        run_id_file: the placeholder for the file with the run id of a tracked stage.
    """
    if not retries:
        return ()
    first, following = ("", "") if run_id_file is None else (_FIRST_RUN_ID, _NEXT_RUN_ID)
    return ("sh", "-c", _SCRIPT % (first, retries + 1, retries + 1, following), run_id_file or "sh")
