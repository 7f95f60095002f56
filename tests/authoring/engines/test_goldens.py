"""The launcher's input for each engine and application; ``make goldens`` rewrites the files."""

import pytest

from tests.authoring.engines.goldens import GOLDENS, NAMES, golden_file, text_of
from tests.pipelines.regenerate import normalise

pytestmark = pytest.mark.versions


def test_there_are_no_other_files() -> None:
    assert sorted(file.name for file in GOLDENS.iterdir()) == sorted(golden_file(name).name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_its_golden(name: str) -> None:
    assert normalise(text_of(name)) == golden_file(name).read_text(encoding="utf-8"), (
        "python -m tests.pipelines.regenerate rewrites it: review the difference"
    )
