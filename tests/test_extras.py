"""The modules by which a missing extra is noticed are those that the extra installs."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires

import pytest

from torchx_kfp.common.extras import MODULES


def top_level(distribution_name: str) -> set[str]:
    try:
        files = distribution(distribution_name).files or []
    except PackageNotFoundError:  # no test here needs gcsfs, and Ax has an environment of its own
        return {distribution_name.partition("-")[0]}
    return {file.parts[0] for file in files}


@pytest.mark.parametrize("extra", MODULES)
def test_modules_of_an_extra_are_those_of_its_distributions(extra: str) -> None:
    assert {*MODULES} <= set(metadata("torchx-kfp").get_all("Provides-Extra", []))
    found = [text for text in requires("torchx-kfp") or [] if text.endswith(f'extra == "{extra}"')]
    # kfp-kubernetes is inside kfp.
    named = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in found} - {"kfp-kubernetes"}
    assert len(MODULES[extra]) == len(named)
    for name in named:
        assert top_level(name) & set(MODULES[extra]), name
