"""What is asked of pip, and when: nothing for what is there already, and again for what has changed."""

import os
import time
from unittest.mock import Mock

import pytest

from tests.execution.local.test_venvs import environments, make_wheel
from tests.facts import says
from torchx_kfp.execution.local.executors.executor import AttemptError
from torchx_kfp.execution.local.packages import are_satisfied, provide_environment


@pytest.mark.parametrize(
    ("words", "satisfied"),
    [
        (["pytest"], True),
        (["PyTest>=1", "--index-url", "http://nowhere"], True),
        (["pytest<1"], False),
        (["torchx-kfp[pandas]"], True),
        (["kfp[nothing-of-the-kind]"], True),
        (["pytest", "--upgrade"], False),
        (["pytest @ file:///pytest.whl"], False),
        (["./pytest"], False),
        (["no-such-package"], False),
        (['no-such-package; python_version < "3"'], True),
    ],
)
@pytest.mark.lowest
def test_what_is_satisfied(words, satisfied):
    assert are_satisfied(words) is satisfied


def test_a_wheel_or_a_folder_that_has_changed_is_installed_again(tmp_path, cache):
    commands = []

    def provide(*words):
        return provide_environment([words], {}, lambda command, _: commands.append(command) or 0, lambda: None)

    wheel = make_wheel(tmp_path / "dist", "tiny", "1.5")
    (tmp_path / "project" / "src").mkdir(parents=True)
    cases = ([f"tiny @ file://{wheel}"], ["--find-links", str(wheel.parent), "tiny"], [f"{tmp_path}/project[x]"])
    for hours, words in enumerate(cases, 1):
        first = provide(*words)
        assert provide(*words) == first
        for path in (wheel, tmp_path / "project" / "src"):
            later = time.time() + 3600 * hours
            os.utime(path, (later, later))
        assert provide(*words) != first
        assert [command[-1] for command in commands] == [words[-1]] * 2
        commands.clear()


def test_indexes_may_name_variables(cache):
    commands = []
    environ = {"TOKEN": "t0"}
    words = ["--index-url", "https://$USER:${TOKEN}@host/simple", "no-such-$TOKEN"]
    folder = provide_environment([words], environ, lambda command, _: commands.append(command) or 0, lambda: None)
    assert commands[0][-3:] == ("--index-url", "https://$USER:t0@host/simple", "no-such-$TOKEN")
    assert folder == environments(cache)[0].resolve()


def test_a_stage_that_waits_for_another_can_be_ended(cache):
    words = ["no-such-package"]

    def install(command, environ):
        # Meanwhile, another stage needs the same packages, and is ended.
        verify_wanted = Mock(side_effect=[None, None, AttemptError("was ended")])
        with pytest.raises(AttemptError, match="was ended"):
            provide_environment([words], {}, lambda *_: 0, verify_wanted)
        return 1

    with pytest.raises(AttemptError, match=says("(no-such-package)", "pip", "exit code 1")):
        provide_environment([words], {}, install, lambda: None)
