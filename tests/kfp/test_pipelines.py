"""Each pipeline ends on the host as on this machine, but for what ``docs/why/differences.md`` says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kfp.conftest import NAMED
from tests.kfp.pipelines import PROOFS, Proof, corpus, examples, replicas
from tests.kfp.suite import Suite

#: Of the others, what the tests run on their own host, which runs pipelines as this machine does.
FEW = (
    "loops.nested",
    "exits.two_handlers",
    "python_components.text_of_every_kind",
    "examples.digits",
    "examples.hello",
    "examples.sized",
)
CASES = [*PROOFS, *(each for each in (*examples(), *corpus()) if NAMED or each.name in FEW)]


@pytest.mark.parametrize("proof", CASES, ids=lambda proof: proof.name)
def test_pipeline(proof: Proof, suite: Suite, record_property: Callable[[str, object], None]) -> None:
    if proof.missing and suite.place.is_real:
        pytest.skip(f"it needs {proof.missing}")
    if lacking := set(proof.packages) - suite.packages:
        pytest.skip(f"the image {suite.place.image} has no {' and no '.join(sorted(lacking))}")
    verdict = suite.prove(proof)
    record_property("kfp", (proof.name, verdict.there, verdict.here, verdict.differences, proof.expected))
    assert proof.expected or not verdict.differences, f"run {verdict.run_id}: " + "\n".join(verdict.differences)


@pytest.mark.parametrize("engine", NAMED.engines if NAMED else ("job",))
def test_engine(engine: str, suite: Suite, record_property: Callable[[str, object], None]) -> None:
    made = Proof(f"replicas.{engine}", lambda: replicas(engine), results={"replica": {"replicas": 2}})
    test_pipeline(made, suite, record_property)
