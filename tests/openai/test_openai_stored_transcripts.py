"""Transcripts that the server keeps, and denied messages in later requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen, asks, says
from tests.openai.transcripts import assert_each_continues_the_one_before, create, on, read, shape


def test_a_stored_response_gets_the_results_it_lacks(governor):
    script = [
        asks(("a", "erase_file", {}), ("b", "look", {})),
        asks(("c", "erase_file", {})),
        says("Then not."),
        says("x"),
    ]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        first = client.responses.create(model="m", input="go")
        output = {"type": "function_call_output", "call_id": "b", "output": "seen"}
        second = client.responses.create(model="m", input=[output], previous_response_id=first.id)
        branch = client.responses.create(model="m", input=[output], previous_response_id=first.id)
    assert (second.output_text, branch.output_text) == ("Then not.", "x")
    assert [shape(read(server, number)) for number in (1, 2, 3)] == [
        ["function_call_output:a", "function_call_output:b"],
        ["function_call_output:c"],
        ["function_call_output:a", "function_call_output:b"],
    ]
    hidden = server.requests[2].body["previous_response_id"]
    assert hidden not in (first.id, second.id)
    assert server.requests[3].body["previous_response_id"] == first.id


def test_a_stored_conversation_gets_missing_results_once(governor):
    script = [asks(("a", "erase_file", {}), ("b", "look", {})), ScriptedReply("no", status=500), says("ok"), says("ok")]
    output = {"type": "function_call_output", "call_id": "b", "output": "seen"}
    with ScriptedModelServer(script) as server:
        client = on(server, governor, max_retries=1)
        client.responses.create(model="m", input="go", conversation="conv_1")
        client.responses.create(model="m", input=[output], conversation="conv_1")
        client.responses.create(model="m", input="more", conversation="conv_1")
    wanted = ["function_call_output:a", "function_call_output:b"]
    assert [shape(read(server, number)) for number in (1, 2)] == [wanted, wanted]
    assert read(server, 3) == "more"


def test_an_unsent_reply_is_not_continued():
    denied = ["hunter2"]

    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            return self.deny("no", "a password") if action.text in denied else self.allow()

    with ScriptedModelServer([says("one"), says("two")]) as server:
        client = on(server, Governor([NoPasswords()]))
        refused = client.responses.create(model="m", input="hunter2")
        assert client.responses.create(model="m", input="so?", previous_response_id=refused.id).output_text == "one"
        assert "previous_response_id" not in server.requests[0].body
        said = [{"role": "user", "content": "hunter2"}]
        assert "DENIED" in create(client, said).content
        denied.clear()  # the policy was changed meanwhile
        assert create(client, said).content == "two"
        assert server.requests[1].body["messages"] == said


def test_a_denied_message_is_in_no_later_request():
    seen = Seen()

    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            denied = action.point is Point.INPUT and "hunter2" in (action.text or "")
            return self.deny("no", "a password") if denied else self.allow("fine")

    said, hello = {"role": "user", "content": "hunter2"}, {"role": "user", "content": "hello"}
    with ScriptedModelServer([says("one"), says("two"), says("three"), says("four"), says("5"), says("6")]) as server:
        client = on(server, Governor([NoPasswords()], plugins=[seen]))
        denial = create(client, [said])
        assert "DENIED" in denial.content
        assert create(client, [said, denial, hello]).content == "one"
        assert create(client, [said, denial, hello, {"role": "assistant", "content": "one"}, hello]).content == "two"
        assert_each_continues_the_one_before(server)
        # A server knows nothing of the reply that was the denial.
        first = client.responses.create(model="m", input="hi")
        refused = client.responses.create(model="m", input="hunter2", previous_response_id=first.id)
        assert client.responses.create(model="m", input="so?", previous_response_id=refused.id).output_text == "four"
        assert server.requests[-1].body["previous_response_id"] == first.id
        assert not [request for request in server.requests if "hunter2" in str(request.body)]
        assert len(seen.decisions(Point.INPUT)) == 6
        # Nor where the transcript comes from somewhere else.
        elsewhere = on(server, Governor([NoPasswords()], plugins=[seen]))
        before = [said, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "early"}]
        for number in range(2):
            create(elsewhere, [*before, {"role": "assistant", "content": "Yes?"}, hello])
            assert len(seen.decisions(Point.INPUT)) == 9, number
        assert not [request for request in server.requests if "hunter2" in str(request.body)]


def test_an_earlier_message_can_abort_the_run():
    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            denied = action.point is Point.INPUT and "hunter2" in (action.text or "")
            return replace(self.deny("no", "a password"), abort=True) if denied else self.allow()

    earlier = [{"role": "user", "content": "hunter2"}, {"role": "assistant", "content": "Hm."}]
    with ScriptedModelServer([says("one")]) as server:
        client = on(server, Governor([NoPasswords()]))
        with pytest.raises(PolicyDenied):
            create(client, [*earlier, {"role": "user", "content": "hello"}])
        assert server.requests == []
