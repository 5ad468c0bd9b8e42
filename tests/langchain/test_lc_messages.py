"""Messages with what a policy replaced."""

from __future__ import annotations

from langchain_core.messages import HumanMessage

from lgov_langchain import messages


def test_a_transform_leaves_each_picture_with_its_message() -> None:
    def picture(data: str) -> HumanMessage:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return HumanMessage([{"type": "text", "text": "look"}, image])

    first, asked, second = given = [picture("aa"), HumanMessage("well?"), picture("bb")]
    said = messages.as_mappings(given)
    assert [id(one) for one in messages.with_messages(given, [said[0], said[2]])] == [id(first), id(second)]
    reworded = messages.with_messages(given, [{**said[0], "content": "so?"}, *said[1:]])
    assert reworded[0].content == [{"type": "text", "text": "so?"}, first.content[1]]
    assert reworded[1:] == [asked, second]
    alone = messages.with_messages(given, [{**said[0], "content": "so?"}])
    assert [one.content for one in alone] == ["so?"], "the picture of a message that is gone does not stay"
