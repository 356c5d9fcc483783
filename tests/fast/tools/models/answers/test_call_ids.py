"""Calls of a conversation have ids that their server takes."""

from sextant.tools.models.answers.call_ids import identify, shorten_ids


def test_every_call_has_an_id_of_its_own_which_is_the_one_that_came_where_it_can_be():
    earlier = [{"role": "assistant", "tool_calls": [{"id": "call_1"}]}]
    calls = [{"id": "aB3dE6gH9"}, {"id": "call_1"}, {"id": ""}, {"id": "x"}, {"id": "x"}]
    ids = [call["id"] for call in identify(calls, earlier)]
    assert ids == ["aB3dE6gH9", "c00001001", "c00001002", "x", "c00001004"]


def test_ids_are_shortened_in_calls_and_results_alike():
    said = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [{"id": "aB3dE6gH9"}, {"id": "1697377797897"}]},
        {"role": "tool", "tool_call_id": "1697377797897"},
        {"role": "tool", "tool_call_id": "aB3dE6gH9"},
    ]
    _, asked, *results = shorten_ids(said)
    assert [call["id"] for call in asked["tool_calls"]] == ["aB3dE6gH9", "c00001001"]
    assert [result["tool_call_id"] for result in results] == ["c00001001", "aB3dE6gH9"]
