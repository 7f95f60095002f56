"""``make mutants`` finds its mutants again in another tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dev import mutants, mutation
from dev.mutation import Mutant, mutants_of, sample, text_with

TEXT = """
def grow(size: int = 1, *, most: int = 9) -> int:
    if size >= most:
        raise ValueError(f"{size - 1} is too much")
    return grow(size + 1, most=most)
"""
LIMIT = Mutant("torchx_kfp/trees.py", "grow", "size >= most", "size > most", "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutation, "REPOSITORY", tmp_path)
    package = tmp_path / "torchx_kfp"
    package.mkdir()
    (package / "trees.py").write_text(TEXT)
    return package


def test_a_mutant_changes_one_node(package: Path) -> None:
    found = mutants_of("torchx_kfp/trees.py")
    assert {(each.before, each.after) for each in found if "raise" not in each.before} == {
        ("size >= most", "size > most"),
        ("1", "2"),
        ("9", "10"),
        ("size + 1", "size - 1"),
        ("grow(size + 1, most=most)", "grow(size + 1)"),
        ("return grow(size + 1, most=most)", "return None"),
    }
    for line, text in found.values():
        ast.parse(text)
        [changed] = [
            number
            for number, both in enumerate(zip(TEXT.splitlines(), text.splitlines(), strict=True), 1)
            if both[0] != both[1]
        ]
        assert changed == line


def test_a_mutant_is_found_where_its_function_is_now(package: Path) -> None:
    mutated = TEXT.replace("size >= most", "(size > most)")
    assert text_with(LIMIT) == ("torchx_kfp/trees.py", mutated)
    (package / "trees.py").rename(package / "plants.py")
    assert text_with(LIMIT) == ("torchx_kfp/plants.py", mutated)


@pytest.mark.parametrize(("old", "new"), [("size >= most", "most <= size"), ("def grow", "def shrink")])
def test_a_mutant_without_its_text_is_gone(package: Path, old: str, new: str) -> None:
    (package / "trees.py").write_text(TEXT.replace(old, new))
    assert text_with(LIMIT) is None


def test_the_same_seed_makes_the_same_sample(package: Path) -> None:
    assert sample(3, 31) == sample(3, 31)
    assert len(set(sample(3, 31))) == 3


def test_a_test_is_there_if_its_file_class_and_name_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "REPOSITORY", tmp_path)
    (tmp_path / "test_it.py").write_text("class TestA:\n    def test_one(self): ...\ndef test_two(): ...\n")
    assert mutants.is_there("test_it.py::TestA::test_one")
    assert mutants.is_there("test_it.py::test_two")
    for gone in ("test_it.py", "test_it.py::TestB::test_one", "test_it.py::test_on", "test_no.py::test_two", ""):
        assert not mutants.is_there(gone)
