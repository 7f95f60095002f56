"""Small pipelines for runs on a host."""

# Annotations are not postponed: kfp reads them as types.
from kfp import dsl


@dsl.container_component
def work(code: str):
    return dsl.ContainerSpec(image="app:1", command=["python3", "-c", code])


@dsl.pipeline
def small(code: str):
    work(code=code)


# Pipelines of made-up answers: see ``event_logs``


@dsl.container_component
def items(found: dsl.OutputPath(list)):
    return dsl.ContainerSpec(image="app:1", command=["python3", "-c", "pass"], args=[found])


@dsl.pipeline
def one(code: str = ""):
    work(code=code)


@dsl.pipeline
def chain(code: str = ""):
    first = work(code=code)
    work(code=code).after(first).set_retry(2, backoff_duration="5s")


@dsl.pipeline
def loop(code: str = ""):
    with dsl.ParallelFor(items().outputs["found"]) as item:
        work(code=item)


@dsl.pipeline
def branch(code: str = "a"):
    with dsl.If(code == "b"):
        work(code=code)


@dsl.pipeline
def nested(code: str = ""):
    one(code=code).set_retry(1)


@dsl.pipeline
def with_exit(code: str = ""):
    bye = work(code="bye")
    with dsl.ExitHandler(bye):
        work(code=code)


@dsl.pipeline
def imports():
    dsl.importer(artifact_uri="s3://bucket/data", artifact_class=dsl.Dataset, reimport=False)
