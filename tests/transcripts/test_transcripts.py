"""Commands print what the transcripts in this folder say: ``python -m tests.transcripts`` rewrites them."""

from __future__ import annotations

import pytest

from tests.programs import Program
from tests.transcripts import FOLDER, Section, agrees, play, sections

SECTIONS = [section for file in sorted(FOLDER.glob("*.md")) for section in sections(file)]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_commands_print_what_the_transcript_says(section: Section, call: Program) -> None:
    for command, printed in play(section, call):
        if not agrees(command.output, printed):
            assert printed == command.output, f"$ {command.line}"


def test_an_output_that_is_not_what_the_transcript_says_is_found() -> None:
    assert agrees("loss ... 1\n", "loss = 0.5 and 1\n")
    assert not agrees("loss ... 1\n", "loss\n1\n")
    assert not agrees("loss\n", "loss\n[exit 1]\n")
    assert not agrees("loss\n", "loss\n! Warning\n")
