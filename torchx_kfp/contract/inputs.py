"""The inputs of a stage's component: their names, and the values that the input ``stage`` carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchx_kfp.contract import protocol
from torchx_kfp.contract.escapes import escape

#: The output with a tracked stage's run id.
RUN_ID = "run_id"
#: The name of the input for the run id of a stage that is read without an alias.
READS = "reads"
#: The name of the input for the stage's name and values.
STAGE = "stage"
#: The name of the input through which KFP 2.15 and newer tell a distributed stage what is set on its task.
TASK_CONFIG = "task_config"
#: Begins the name of an input that KFP passes into a group of tasks with another one, its carrier.
INNER = "inner_"
#: The suffixes of inputs' names, by type in the IR.
SUFFIXES = {
    "NUMBER_INTEGER": "_int",
    "NUMBER_DOUBLE": "_float",
    "BOOLEAN": "_bool",
    "LIST": "_list",
    "STRUCT": "_dict",
}
#: Matches what follows a channel's name in the name of its input.
ADDED = rf"({'|'.join(SUFFIXES.values())})?(_\d+)?"
#: What is between the values of the input ``stage``. Version 0.1.0 had spaces.
SEPARATOR = "|"


def parameter_placeholder(name: str) -> str:
    """Return the placeholder for an input's value."""
    return f"{{{{$.inputs.parameters['{name}']}}}}"


def output_placeholder(name: str) -> str:
    """Return the placeholder for the path of an output parameter's file."""
    return f"{{{{$.outputs.parameters['{name}'].output_file}}}}"


def artifact_placeholder(name: str) -> str:
    """Return the placeholder for the local path of an output artifact."""
    return f"{{{{$.outputs.artifacts['{name}'].path}}}}"


def encode_aliases(aliases: Iterable[str]) -> list[str]:
    """Return aliases as values of the input ``stage``."""
    return [protocol.encode_alias(alias).replace(SEPARATOR, r"\u007c") for alias in aliases]


def encode_value(text: str) -> str:
    """Return the rest of a word as a value of the input ``stage``."""
    return escape(text).replace(SEPARATOR, r"\0174")


def join_values(stage: str, aliases: Sequence[str], values: Sequence[str]) -> str:
    """Return the input ``stage``: the stage's name, and encoded aliases and values."""
    return SEPARATOR.join([stage, *aliases, *values])
