"""Texts that Argo and the kubelet change; ``tests/execution/local/test_preflight.py`` has the findings of a check."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from torchx_kfp.contract.inputs import find_rewritten
from torchx_kfp.execution.model.texts import find_change


@given(st.text(alphabet=st.sampled_from("$(){}= aé\u4e2d"), max_size=12))
@example("{{=1}}")
@example("$(")
def test_text_that_the_adapter_leaves_alone_arrives_as_it_is(text: str) -> None:
    if find_rewritten(text) is None:
        assert find_change(text) is None
