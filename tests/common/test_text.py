from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.common.text import (
    SuggestingDict,
    counted,
    did_you_mean,
    did_you_mean_path,
    duration,
    joined,
    listed,
    parse_duration,
    shorten,
    shown,
)
from torchx_kfp.errors import UnknownNameError


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (listed([]), ""),
        (listed(["a"]), "a"),
        (listed("abcde"), "a, b, c, d, e"),
        (listed(map(str, range(1005)), 3), "0, 1, 2 and 1,002 more"),
        (listed(["two\nlines", "\x1b[2J"]), "two\\nlines, \\x1b[2J"),
        (" | ".join(map(joined, ("", "a", "ab", "abc"))), " | 'a' | 'a' and 'b' | 'a', 'b' and 'c'"),
        (joined(counted(number, "file") for number in (0, 1, 1000)), "'0 files', '1 file' and '1,000 files'"),
        (" ".join(duration(seconds, whole=True) for seconds in (-1, 0.9, 9.99, 59.99)), "0s 0s 9s 59s"),
        (shown("ab"), "'ab'"),
        (shown("x" * 200, 10), "'xxxxxxxxx... (202 characters)"),
        (shown(10**5000), "a very large int"),
        (shown(Unprintable()), "a very large Unprintable"),
        (shorten("abcdefghijklmnopqrstuvwxyz", 26), "abcdefghijklmnopqrstuvwxyz"),
        (shorten("abcdefghijklmnopqrstuvwxyz", 11), "abcdefghij…"),
        (shorten("abcdefghijklmnopqrstuvwxyz", 11, keep="ends"), "abcdef…wxyz"),
    ],
)
def test_text_for_sentences(made: str, text: str) -> None:
    assert made == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.0004, "0s"),
        (0.0123, "0.012s"),
        (0.35, "0.35s"),
        (0.9996, "1.0s"),
        (9, "9.0s"),
        (59.94, "59.9s"),
        (59.96, "1m 00s"),
        (60, "1m 00s"),
        (725.4, "12m 05s"),
        (3599.6, "1h 00m"),
        (3 * 3600 + 125, "3h 02m"),
        (47 * 3600 + 3599, "47h 59m"),
        (2 * 86400 + 7 * 3600, "2d 07h"),
        (1234.9 * 86400, "1,234d"),
    ],
)
def test_a_duration_is_shown_in_one_or_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("1.5h", 5400), ("1h30m", 5400), ("12m 05s", 725), ("2w", 14 * 86400), ("30d", 30 * 86400)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "0s", "5", "-5s", "1y", "1 hour", "1h-", "x1h", "٣s", f"{'9' * 400}s", "nan"]
)
def test_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@given(st.floats(min_value=0.001, max_value=10 * 86400 - 1800))
def test_a_duration_that_was_written_can_be_read(seconds: float) -> None:
    unit = 3600 if seconds >= 48 * 3600 else 60 if seconds >= 3600 else 1 if seconds >= 59.95 else 0.05
    assert math.isclose(parse_duration(duration(seconds)), seconds, rel_tol=0.05, abs_tol=unit)


@given(st.text(), st.integers(1, 40), st.sampled_from(["start", "ends"]))
def test_cut_text_is_as_long_as_it_may_be(text: str, limit: int, keep: str) -> None:
    assert len(shorten(text, limit, keep=keep)) == min(len(text), limit)


def test_the_nearest_name_is_suggested() -> None:
    names = ["accuracy", "loss", "digits-20260102-120000", "digits-20260101-120000"]
    assert did_you_mean("acuracy", names) == " Did you mean 'accuracy'?"
    assert did_you_mean("acc", names) == " Did you mean 'accuracy'?", "the beginning of a name"
    assert did_you_mean("digtis", names) == " Did you mean 'digits-20260102-120000'?", "misspelled, and cut short"
    assert did_you_mean("zebra", names) == did_you_mean("", names) == did_you_mean("x", []) == ""
    assert did_you_mean(None, ["none", "None"]) == " Did you mean 'None'?", "a program may pass anything"


@pytest.mark.parametrize(
    ("path", "suffixes", "meant"),
    [
        ("pipelines/digit.py", [".py"], "pipelines/digits.py"),
        ("pipelins/digits.py", [".py"], ""),
        ("pipelines/digits.yml", [".yaml", ".py"], "pipelines/digits.yaml"),
        ("pipelines/digits", [".yaml", ".py"], "pipelines/digits.yaml"),
        ("pipelines/zebra.py", [".py"], ""),  # only the suffix is the same
        ("pipelines/.hiden.py", [".py"], "pipelines/.hidden.py"),
        ("../pipelines/hidden.py", [".py"], ""),  # there is no such folder
        ("resluts", [], "results"),
        ("results/run/fil", [], ""),  # a file where a folder is meant
        ("results/run", [".py"], ""),  # a folder where a file is meant
        *((path, [".py"], "") for path in ("zebra/digits.py", "pipelines/digits.py/x", "", "/")),
    ],
)
def test_suggested_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, suffixes: list[str], meant: str
) -> None:
    for file in ("pipelines/digits.py", "pipelines/digits.yaml", "pipelines/.hidden.py", "results/run/file"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    assert did_you_mean_path(path, suffixes) == (f" Did you mean '{meant}'?" if meant else "")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_have_the_error(copied: Callable[[SuggestingDict[float]], SuggestingDict[float]]) -> None:
    named = copied(SuggestingDict({"loss": 0.1}, "The run 'r'", "result"))
    with pytest.raises(UnknownNameError, match=says("The run 'r' has no result 'los'.")):
        named["los"]
