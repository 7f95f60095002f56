"""A TorchX component whose application is a shell script, in an image that contains only busybox.

It shows how a script reads and records results without any library: the results of a run are one JSON object in the
file ``$TORCHX_TRACKER_BASE/<run id>``. A script without further tools can do this in a local directory or a mounted
volume.
"""
# No `from __future__ import annotations`: TorchX reads the parameters' types from the functions.

from torchx import specs

#: The script is a constant: the message is its argument, never a part of its text.
SCRIPT = """\
set -eu
case ${TORCHX_TRACKER_BASE-} in
  "") printf '%s\\n' "$1"; exit ;;
  *://*) echo "echo needs a local directory as tracker base, not $TORCHX_TRACKER_BASE" >&2; exit 1 ;;
esac
say() {
  [ -z "${TORCHX_PARENT_RUN_ID-}" ] || cat "$TORCHX_TRACKER_BASE/$TORCHX_PARENT_RUN_ID"
  printf '%s\\n' "$1"
}
say "$1"
results=$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID
mkdir -p "${results%/*}"
bytes=`say "$1" | wc -c`
printf '{"bytes": %d}\\n' "$bytes" >"$results"
"""


def echo(message: str, image: str = "busybox:1.36") -> specs.AppDef:
    """Prints what the stage that it reads has recorded, and a message; records how many bytes that was.

    Args:
        message: the message, whatever it holds
        image: an image with a shell, printf, cat, mkdir and wc
    """
    role = specs.Role(name="echo", image=image, entrypoint="sh", args=["-c", SCRIPT, "echo", message])
    return specs.AppDef(name="echo", roles=[role])
