"""The engine that asks another server, with real servers that behave badly."""

from __future__ import annotations

import http.server
import json
import logging
import socket
import threading

import httpx
import openai
import pytest

from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine, without_addresses
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.wire.chat import read_completion

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def ask(serving, **more):
    return httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, **more})


def endpoint_for(url: str, **options) -> EndpointServer:
    return EndpointServer(create_app([UpstreamEngine(url, **options)], None, keys=KeyRing(required=False)))


def test_fields_that_a_server_refuses_are_left_out(serve, store):
    serving = serve(["one", "two", "three"], refuse_fields=["return_token_ids"])
    assert ask(serving).json()["choices"][0]["message"]["content"] == "one"
    asked = [sorted(request.body.keys() - BODY.keys()) for request in serving.model.requests]
    assert asked == [["logprobs", "return_token_ids"], ["logprobs"]]
    assert ask(serving).status_code == 200
    assert sorted(serving.model.requests[2].body.keys() - BODY.keys()) == ["logprobs"]
    assert len(serving.model.requests) == 3
    # Streams too, and another model is asked afresh.
    assert "three" in ask(serving, stream=True, model="other").text
    assert len(serving.model.requests) == 5
    captured = list(store.calls())
    assert [(call.prompt_ids, call.response_ids, call.logprobs) for call in captured] == [(None, None, None)] * 3
    assert serving.counters.without_token_ids == 3


def test_a_server_that_refuses_both_fields(serve):
    serving = serve(["one"], refuse_fields=["return_token_ids", "logprobs"])
    assert ask(serving).status_code == 200
    assert serving.model.requests[-1].body == BODY


def test_the_clients_own_fields_are_kept(serve):
    serving = serve(["one"], refuse_fields=["logprobs"])
    reply = ask(serving, logprobs=True)
    assert reply.status_code == 400
    assert "logprobs" in reply.json()["error"]["message"]


def test_refusals_come_back_with_status_body_and_retry_hint(serve, store):
    serving = serve(
        [
            ScriptedReply("slow down", status=429, headers={"retry-after": "7"}),
            ScriptedReply(status=418, body=b"<teapot/>", content_type="text/html"),
            ScriptedReply("bad prompt", status=400),
            ScriptedReply("slow down", status=429),
        ]
    )
    busy = ask(serving)
    assert (busy.status_code, busy.json()["error"]["message"], busy.headers["retry-after"]) == (429, "slow down", "7")
    teapot = ask(serving)
    assert (teapot.status_code, teapot.content, teapot.headers["content-type"]) == (418, b"<teapot/>", "text/html")
    assert ask(serving, stream=True).json()["error"]["message"] == "bad prompt"
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="slow down"):
        client.chat.completions.create(**BODY)
    assert list(store.calls()) == []


@pytest.mark.parametrize("status", [401, 402, 403, 407])
@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_refusal_of_the_endpoints_own_key_is_a_502_of_its_own_and_the_cause_is_in_the_log(status, more, caplog):
    said = ScriptedReply("bad key sk-upstreamsecret123 in /etc/keys", status=status)
    caplog.set_level(logging.INFO, logger="lgov")
    with (
        ScriptedModelServer([said, said]) as model,
        endpoint_for(model.base_url, api_key="sk-upstreamsecret123") as endpoint,
    ):
        for path, body in (("/chat/completions", BODY), ("/messages", {**BODY, "max_tokens": 9})):
            reply = httpx.post(f"{endpoint.base_url}{path}", json={**body, **more})
            assert (reply.status_code, reply.headers["x-should-retry"]) == (502, "false"), "asking again cannot help"
            told = f"the upstream answered {status}, which is about the endpoint's own key there, not the client's"
            assert told in reply.json()["error"]["message"]
            assert "bad key" not in reply.text
            assert "/etc/keys" not in reply.text
    logged = [record for record in caplog.records if record.message == "request failed"]
    here = model.base_url.removeprefix("http://").removesuffix("/v1")
    assert [(line.lgov_fields["upstream"], line.lgov_fields["error"]) for line in logged] == [(here, told)] * 2
    for line in logged:
        assert "bad key" not in str(line.lgov_fields)
        assert "bad key (the endpoint's key) in /etc/keys" in line.lgov_content["detail"], "no log holds a key"


def test_no_refusal_of_an_upstream_tells_the_endpoints_key():
    said = "Bearer sk-upstreamsecret123 cannot use m"
    event = {"error": {"message": said}}
    replies = [
        ScriptedReply(said, status=404),
        ScriptedReply(body=f"data: {json.dumps(event)}\n\n".encode(), content_type="text/event-stream"),
    ]
    with (
        ScriptedModelServer(replies) as model,
        endpoint_for(model.base_url, api_key="sk-upstreamsecret123") as endpoint,
    ):
        for more in ({}, {"stream": True}):
            reply = httpx.post(f"{endpoint.base_url}/chat/completions", json={**BODY, **more})
            assert "Bearer (the endpoint's key) cannot use m" in reply.text


class _Listing(http.server.BaseHTTPRequestHandler):
    """Answers ``GET /v1/models`` with what its class says."""

    status, body, headers_seen = 200, b"", {}

    def do_GET(self):
        assert self.path == "/v1/models"
        type(self).headers_seen = dict(self.headers)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def listing():
    class Listing(_Listing):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Listing.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield Listing
        server.shutdown()


def test_the_models_of_an_upstream_are_those_that_it_lists(listing):
    listing.body = json.dumps({"data": [{"id": "org/m", "root": "/srv/m"}, {"id": "n"}, {"id": 3}, "x"]}).encode()
    with endpoint_for(listing.url, api_key="their-own-key") as endpoint:
        client = openai.OpenAI(base_url=endpoint.base_url, api_key="any", max_retries=0)
        models = client.models.list().data
        assert [(model.id, model.owned_by) for model in models] == [("org/m", "upstream"), ("n", "upstream")]
        assert listing.headers_seen["authorization"] == "Bearer their-own-key"
        assert "/srv" not in httpx.get(f"{endpoint.base_url}/models").text
        assert client.models.retrieve("org/m").id == "org/m"
        with pytest.raises(openai.NotFoundError, match="there are: org/m, n"):
            client.models.retrieve("other")
        listing.body = b'{"data": [{"id": "new"}]}'
        assert [model.id for model in client.models.list().data] == ["new"], "it is asked each time"


def test_of_several_upstreams_the_first_that_answers_lists_the_models(listing):
    listing.body = b'{"data": [{"id": "m"}]}'
    with endpoint_for(["http://127.0.0.1:9/v1", listing.url]) as endpoint:
        for _ in range(2):
            assert [model["id"] for model in httpx.get(f"{endpoint.base_url}/models").json()["data"]] == ["m"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"[]", "not a JSON object"),
        (200, b'{"data": {}}', "does not list its models"),
        (404, b"there is /etc/keys", "the upstream answered 404"),
        (401, b"there is /etc/keys", "the endpoint's own key there"),
    ],
)
def test_an_upstream_that_lists_no_models_is_an_error_of_its_own(listing, status, body, says):
    listing.status, listing.body = status, body
    with endpoint_for(listing.url) as endpoint:
        for path in ("/models", "/models/m"):
            reply = httpx.get(f"{endpoint.base_url}{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream")
            assert says in reply.text
            assert "/etc/keys" not in reply.text


def test_an_upstream_has_as_long_to_list_its_models_as_to_reply_and_five_seconds_at_most():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        endpoint_for(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", timeout_s=0.2) as endpoint,
    ):
        reply = httpx.get(f"{endpoint.base_url}/models")
    assert (reply.status_code, "within 0.2 s" in reply.text, "upstream_timeout_s" in reply.text) == (504, True, False)


def test_an_upstream_with_named_models_is_not_asked_for_them(serve):
    serving = serve([], models=["b", "a"])
    data = httpx.get(f"{serving.base_url}/models").json()["data"]
    assert [model["id"] for model in data] == ["b", "a"], "and not that of the scripted server"
    assert httpx.get(f"{serving.base_url}/models/c").status_code == 404


def test_an_upstream_that_is_busy_says_when_to_ask_again(serve):
    serving = serve([ScriptedReply("loading", status=503, headers={"retry-after": "9"})] * 2)
    for stream in (False, True):
        reply = ask(serving, stream=stream)
        assert (reply.status_code, reply.headers["retry-after"]) == (502, "9")
        assert "loading" not in reply.text


BAD_REPLIES = [
    (ScriptedReply("broken", status=500), "answered 500"),
    (ScriptedReply("elsewhere", status=307, headers={"location": "http://127.0.0.1:9/"}), "answered 307"),
    (ScriptedReply(body=b'{"id": "x", '), "not a JSON object"),
    (ScriptedReply(body=b"[]"), "not a JSON object"),
    (ScriptedReply(body=b'{"id": "x", "choices": []}'), "no choice"),
    (ScriptedReply(body=b'{"choices": [{"message": {"content": "x"}}]}'), "no id"),
    (ScriptedReply(body=b'{"id": "x", "choices": [{"message": {"content": 3}}]}'), "type int"),
    (ScriptedReply(body=b'{"id": "x", "choices": [{"message": {"tool_calls": [{}]}}]}'), "tool calls"),
]


def test_failures_and_nonsense_are_502(serve, store):
    serving = serve([reply for reply, _ in BAD_REPLIES])
    for _, says in BAD_REPLIES:
        reply = ask(serving)
        assert reply.status_code == 502, says
        assert says in reply.json()["error"]["message"]
        assert reply.json()["error"]["code"] == "upstream"
    assert list(store.calls()) == []


def test_a_server_that_does_not_stream(serve):
    serving = serve([ScriptedReply(body=b'{"id": "x", "choices": [{"message": {"content": "x"}}]}')])
    assert "does not stream" in ask(serving, stream=True).json()["error"]["message"]


def test_a_server_that_is_down_is_502_and_one_that_hangs_is_504():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        closed = socket.create_server(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        closed.close()
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        for url, status, says in ((dead, 502, "the upstream cannot be reached"), (hanging, 504, "within 0.2 s")):
            with endpoint_for(url, timeout_s=0.2) as endpoint:
                for stream in (False, True):
                    reply = httpx.post(f"{endpoint.base_url}/chat/completions", json={**BODY, "stream": stream})
                    assert reply.status_code == status
                    assert says in reply.json()["error"]["message"]
                    assert url.split("/")[2] not in reply.text, "an agent learns no address"


def test_a_server_that_comes_back_is_used_again():
    with ScriptedModelServer(["one"]) as first:
        port = int(first.base_url.split(":")[2].split("/")[0])
        endpoint = endpoint_for(first.base_url).start()
        assert httpx.post(f"{endpoint.base_url}/chat/completions", json=BODY).status_code == 200
    try:
        assert httpx.post(f"{endpoint.base_url}/chat/completions", json=BODY).status_code == 502
        with ScriptedModelServer(["two"], port=port):
            reply = httpx.post(f"{endpoint.base_url}/chat/completions", json=BODY)
            assert reply.json()["choices"][0]["message"]["content"] == "two"
    finally:
        endpoint.stop()


def test_many_requests_at_once_share_the_pool(serve, store):
    everyone = threading.Barrier(8)
    serving = serve(lambda body: body["messages"][0]["content"])
    answers: dict[int, str] = {}

    def asking(number: int) -> None:
        everyone.wait()
        for turn in range(4):
            text = f"{number}/{turn}"
            reply = ask(serving, messages=[{"role": "user", "content": text}])
            answers[number * 10 + turn] = reply.json()["choices"][0]["message"]["content"]
            assert answers[number * 10 + turn] == text

    threads = [threading.Thread(target=asking, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 32
    assert len(list(store.calls())) == 32


def test_the_key_of_the_upstream_is_sent_and_the_clients_is_not():
    with ScriptedModelServer(["x"]) as model, endpoint_for(model.base_url, api_key="theirs") as endpoint:
        openai.OpenAI(base_url=endpoint.base_url, api_key="ours").chat.completions.create(**BODY)
        assert model.requests[0].headers["authorization"] == "Bearer theirs"


def test_what_does_not_fit_together_is_none():
    def read(choice: dict, **more):
        return read_completion({"id": "x", "choices": [{"message": {"content": "x"}, **choice}], **more})

    pairs = {"content": [{"logprob": -0.5}, {"logprob": -1}]}
    whole = read({"token_ids": [1, 2], "logprobs": pairs}, prompt_token_ids=[3], lgov={"weights_version": 4})
    assert (whole.prompt_ids, whole.response_ids, whole.logprobs) == ((3,), (1, 2), (-0.5, -1.0))
    assert (whole.prompt_tokens, whole.completion_tokens, whole.weights_version) == (1, 2, 4)
    assert read({"token_ids": [1], "logprobs": pairs}).logprobs is None
    assert read({"logprobs": pairs}).logprobs is None
    assert read({"token_ids": [1, 2], "logprobs": {"content": [{"logprob": None}, {}]}}).logprobs is None
    for ids in ("12", [1.0], [True], [-1], [None]):
        assert read({"token_ids": ids}).response_ids is None
    assert read({}).finish_reason == "unknown"
    with pytest.raises(UpstreamError):
        read_completion({})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://user:secret@x/v1", ""])
def test_addresses_that_are_none(url):
    with pytest.raises(EndpointError, match="is not a URL"):
        UpstreamEngine(url)


def test_a_key_with_a_line_break_is_refused():
    with pytest.raises(EndpointError, match="characters that a header cannot"):
        UpstreamEngine("http://127.0.0.1:1/v1", api_key="secret\n")


def test_proxies_named_by_the_environment_are_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedModelServer(["x"]) as model, endpoint_for(model.base_url) as endpoint:
        reply = httpx.post(f"{endpoint.base_url}/chat/completions", json=BODY, trust_env=False)
        assert reply.json()["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel",
        b"nonsense",
        b"",
    ],
)
def test_an_answer_that_breaks_off_is_502(raw):
    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(raw)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        with endpoint_for(f"http://127.0.0.1:{listener.getsockname()[1]}/v1") as endpoint:
            reply = httpx.post(f"{endpoint.base_url}/chat/completions", json=BODY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream")


def test_zero_logprobs_are_passed_on(serve):
    serving = serve(["one"])
    asked = {"model": "m", "prompt": "x", "logprobs": 0}
    assert httpx.post(f"{serving.base_url}/completions", json=asked).status_code == 200
    assert serving.model.requests[-1].body == {**asked, "return_token_ids": True}


@pytest.mark.parametrize("stream", [False, True])
def test_no_address_behind_the_endpoint_reaches_its_client(serve, stream):
    def script(body):
        text = f"{here} (http://10.0.0.7:8000, [fd00::7]:9, 192.168.1.9) says no; ask https://example.com or 8.8.8.8, v1.2.3"
        if not stream:
            return ScriptedReply(text, status=400)
        events = [{"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]}, {"error": {"message": text}}]
        sent = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
        return ScriptedReply(body=sent, content_type="text/event-stream")

    serving = serve(script)
    here = serving.model.base_url.removeprefix("http://").removesuffix("/v1")
    text = ask(serving, stream=stream).text
    (said,) = (line for line in text.splitlines() if "says no" in line)
    hidden = "(the upstream)"
    assert f"{hidden} (http://{hidden}, {hidden}, {hidden}) says no; ask https://example.com or 8.8.8.8, v1.2.3" in said


def test_the_name_of_an_upstream_is_hidden_and_words_that_are_like_it_are_not():
    assert (
        without_addresses("the model at model:8000: not model", "model:8000")
        == "the model at (the upstream): not model"
    )
    assert (
        without_addresses("gpu.lan failed, my-gpu.lan did not", "gpu.lan:80")
        == "(the upstream) failed, my-gpu.lan did not"
    )
    assert without_addresses("at 10:20:30 of fe80::1", "x:1") == "at 10:20:30 of (the upstream)"
