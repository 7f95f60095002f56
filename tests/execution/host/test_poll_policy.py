"""The waits between polls."""

from __future__ import annotations

import dataclasses

import pytest

from torchx_kfp.execution.host.run import DEFAULT_POLICY, PollPolicy, PollTimer


def waits(changes: list[bool], policy: PollPolicy = DEFAULT_POLICY, cost: float = 0.0) -> list[float]:
    slept: list[float] = []
    waiting = PollTimer(dataclasses.replace(policy, sleep=slept.append))
    for changed in changes:
        waiting.wait(changed=changed, cost=cost)
    return [round(seconds, 3) for seconds in slept]


def test_waits_grow_while_nothing_changes_and_begin_again_after_a_change() -> None:
    changes = [True, True, False, False, False, False, True, False]
    assert waits(changes, PollPolicy(shortest=1, longest=5, factor=2)) == [1, 1, 2, 4, 5, 5, 1, 2]


def test_the_default_waits() -> None:
    found = waits([True] + [False] * 20)
    assert found[0] == 1.0
    assert found[-1] == 10.0
    assert sum(found[:6]) < 20, "a stage of some seconds is seen while it runs"


@pytest.mark.parametrize("cost", [0.001, 0.05, 0.4, 3.0])
def test_polls_take_a_small_part_of_a_core(cost: float) -> None:
    count = 200
    total = sum(waits([True] * count, cost=cost))
    assert count * cost <= 0.05 * total + 1.0 + cost, "the credit, and the last poll"
    if cost <= 0.05:
        assert total == pytest.approx(count * 1.0)


def test_the_first_poll_of_a_large_run_does_not_delay_the_next() -> None:
    slept: list[float] = []
    policy = PollTimer(PollPolicy(sleep=slept.append))
    policy.wait(changed=True, cost=0.8)
    assert slept == [1.0]
