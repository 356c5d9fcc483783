"""What belongs to others is as it was once the last of several blocks has ended, however it ends."""

import gc
import os
from types import SimpleNamespace

import pytest

from sextant.tools.platform.temporary_changes import (
    AttributeChange,
    SharedContext,
    changed_attributes,
    changed_environment,
)
from sextant.tools.process_changes import while_running


@pytest.fixture
def theirs():
    return SimpleNamespace(kept="before")


@pytest.fixture
def changing(theirs):
    changes = [AttributeChange(theirs, name, "ours") for name in ("kept", "added")]
    return SharedContext(lambda: changed_attributes(changes))


def test_the_first_of_several_blocks_makes_a_change_and_the_last_takes_it_back(theirs, changing):
    first, second = changing(), changing()
    first.__enter__()
    with second:
        first.__exit__(None, None, None)  # as threads end in any order
        assert (theirs.kept, theirs.added) == ("ours", "ours")
    assert vars(theirs) == {"kept": "before"}


def test_a_change_is_taken_back_when_the_block_fails(theirs, changing):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), changing():
            raise ZeroDivisionError
        assert vars(theirs) == {"kept": "before"}


def test_what_somebody_else_has_set_meanwhile_stays(theirs, changing):
    with changing():
        theirs.kept = "of another library"
    assert vars(theirs) == {"kept": "of another library"}


def test_a_variable_that_the_user_has_set_stays_and_others_go(monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "yes")
    monkeypatch.delenv("OF_NOBODY", raising=False)
    with changed_environment({"OF_THE_USER": "no", "OF_NOBODY": "no"}):
        assert (os.environ["OF_THE_USER"], os.environ["OF_NOBODY"]) == ("yes", "no")
    with changed_environment({"OF_THE_USER": "no"}, override=True):
        assert os.environ["OF_THE_USER"] == "no"
    assert os.environ["OF_THE_USER"] == "yes" and "OF_NOBODY" not in os.environ


def test_what_a_user_has_frozen_stays_frozen_after_a_run():
    gc.freeze()
    try:
        with while_running():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
