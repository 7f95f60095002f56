"""Importers: artifacts that exist already."""

from pathlib import Path

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component, echo, read, write
from torchx_kfp import artifact_from_uri

#: What KFP keeps as metadata that contain a channel: the placeholder.
ROWS, NOTE = "{{$.inputs.parameters['metadata']}}", "{{$.inputs.parameters['metadata-2']}}"
#: A file that exists on every machine that runs the tests.
HERE = Path(__file__).with_name("imported.txt")


@component
def describe(data: dsl.Input[dsl.Dataset]) -> str:
    return f"{data.uri} {sorted(data.metadata.items())} {type(data).__name__}"


@case(missing="a file of this machine", outputs={"Output": "imported\n"})
def a_file() -> str:
    return read(data=dsl.importer(artifact_uri=str(HERE), artifact_class=dsl.Dataset).output).output


@case(
    missing="credentials for a bucket",
    arguments={"uri": "s3://bucket/x", "rows": 3},
    outputs={"Output": f"s3://bucket/x {[('note', f'of {NOTE}'), ('rows', ROWS)]} Dataset"},
)
def from_parameters(uri: str, rows: int) -> str:
    imported = dsl.importer(
        artifact_uri=uri,
        artifact_class=dsl.Dataset,
        metadata={"rows": f"{rows}", "note": f"of {echo(text='today').output}"},
    )
    return describe(data=imported.output).output


@case(
    missing="a bucket of Google's",
    stages={"write[0]": {"out": "gs://bucket/a"}, "describe[1]": {"Output": "gs://bucket/b [] Dataset"}},
)
def in_a_loop():
    with dsl.ParallelFor(["gs://bucket/a", "gs://bucket/b"]) as uri:
        describe(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output)
        write(text=uri)


@case(stages={"importer": "skipped", "describe": "skipped", "echo": {"Output": "else"}})
def in_a_branch(x: int = 1):
    with dsl.If(x == 2):
        describe(data=dsl.importer(artifact_uri="gs://bucket/a", artifact_class=dsl.Dataset).output)
    with dsl.Else():
        echo(text="else")


@case(missing="a file of this machine", artifacts={"Output": "imported\n"})
def as_output() -> dsl.Dataset:
    return dsl.importer(artifact_uri=str(HERE), artifact_class=dsl.Dataset).output


@case(missing="credentials for a bucket", outputs={"Output": "imported\n"})
def artifact_from_an_output() -> str:
    return read(data=artifact_from_uri(echo(text=str(HERE)).output, dsl.Dataset)).output


@case(
    missing="credentials for a bucket",
    arguments={"uri": "s3://bucket/x"},
    outputs={"Output": "s3://bucket/x [('source', 'web')] Dataset"},
)
def artifact_from_a_parameter(uri: str) -> str:
    return describe(data=artifact_from_uri(uri, dsl.Dataset, metadata={"source": "web"})).output
