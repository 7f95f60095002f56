"""Small pipelines for runs on a host."""

# Annotations are not postponed: kfp reads them as types.
from kfp import dsl


@dsl.container_component
def work(code: str):
    return dsl.ContainerSpec(image="app:1", command=["python3", "-c", code])


@dsl.pipeline
def small(code: str):
    work(code=code)


@dsl.pipeline
def retries(code: str):
    work(code=code).set_retry(2, backoff_duration="0s").set_caching_options(False)


@dsl.pipeline
def leaves():
    with dsl.ExitHandler(work(code="print('bye')")):
        work(code="import sys; sys.exit(1)")


@dsl.pipeline
def loops(go: bool = True):
    with dsl.ParallelFor([1, 2]), dsl.ParallelFor(["a", "b"]):
        work(code="print(1)")
    with dsl.If(go == True), dsl.If(go == False):  # noqa: E712 (KFP's conditions)
        work(code="print(2)")
