"""The launcher's input for each engine and application; ``make goldens`` rewrites the files."""

import pytest

from tests.authoring.engines.goldens import NAMES, golden_file, text_of
from tests.pipelines.regenerate import normalise

pytestmark = pytest.mark.versions


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_its_golden(name: str) -> None:
    assert normalise(text_of(name)) == golden_file(name).read_text(encoding="utf-8"), (
        "python -m tests.pipelines.regenerate rewrites it: review the difference"
    )
