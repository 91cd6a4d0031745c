"""Bad clients on raw sockets (reference/security.md 4.1, 4.2): each is refused in JSON, none is awaited."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from panal.cli.descriptors import room_for_connections
from panal.gateway.door import Door
from panal.gateway.http_protocol import HttpLimits
from tests.support.edge import ANSWER, CHAT, KEY, Edge, Raw, Reply, edge, post, replies

LIMITS = HttpLimits(
    header_s_max=1.0,
    body_gap_s_max=1.0,
    body_s_max=3.0,
    keep_alive_s_max=1.0,
    body_bytes_max=200_000,
    write_stall_s_max=2.0,
)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + KEY


@pytest.fixture
async def here() -> AsyncIterator[Edge]:
    async with edge(LIMITS) as made:
        yield made


def told(found: list[Reply], status: int) -> Reply:
    """The one answer: OpenAI's shape, with the request's id in body and header."""
    assert [reply.status for reply in found] == [status], found
    error = found[0].error
    assert error["message"] and error["type"] and error["code"]
    assert error["request_id"].startswith("req_")
    assert found[0].headers["x-request-id"] == error["request_id"]
    assert found[0].headers["content-type"] == "application/json"
    return found[0]


async def good(here: Edge) -> None:
    """Somebody else is served as ever."""
    assert [reply.status for reply in await here.ask(post())] == [200]


# --- who says nothing, or goes on saying it ---------------------------------------------------------


async def test_who_connects_and_says_nothing_is_closed(here: Edge) -> None:
    assert await here.ask() == []
    await good(here)


async def test_half_a_header_is_a_timeout(here: Edge) -> None:
    told(await here.ask(HEAD + b"X-A: 1"), 408)


async def test_a_dripped_header_is_a_timeout(here: Edge) -> None:
    pieces = [b"POST /v1/chat/completions HTTP/1.1\r\n"] + [b"X-%d: 1\r\n" % number for number in range(8)]
    told(await here.ask(*pieces, pause_s=0.3), 408)


async def test_a_second_request_has_the_same_time_for_its_header(here: Edge) -> None:
    found = await here.ask(post(last=False), b"POST /v1", pause_s=0.3)
    assert found[0].status == 200
    told(found[1:], 408)


async def test_an_idle_connection_is_closed_also_when_it_drips_line_ends(here: Edge) -> None:
    found = await here.ask(post(last=False), *[b"\r\n"] * 8, pause_s=0.3)
    assert [reply.status for reply in found] == [200]


async def test_half_a_body_is_a_timeout(here: Edge) -> None:
    told(await here.ask(HEAD + b"Content-Length: 50\r\n\r\n{"), 408)
    assert here.answered == []


async def test_a_dripped_body_is_a_timeout(here: Edge) -> None:
    told(await here.ask(HEAD + b"Content-Length: 500\r\n\r\n", *[b"{"] * 20, pause_s=0.3), 408)


async def test_a_body_without_a_key_is_no_way_to_stay(here: Edge) -> None:
    """The 401 is out before the body; who then stops sending, or has sent all, is closed all the same."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"
    told(await here.ask(head, b"{}"), 401)
    told(await here.ask(head, b"{}", b"{}", pause_s=0.2), 401)


# --- two readers, two requests ----------------------------------------------------------------------

SMUGGLING = {
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": b"Content-Length: +2\r\n\r\n{}",
    "a length beyond 64 bits": b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunked not last": b"Transfer-Encoding: chunked, gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "bare line feeds": b"X-A: 1\nContent-Length: 2\n\n{}",
    "a folded header": b"X-A: 1\r\n 2\r\nContent-Length: 2\r\n\r\n{}",
    "a bare carriage return": b"X-A: 1\rX-B: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a null in a value": b"X-A: 1\x002\r\nContent-Length: 2\r\n\r\n{}",
    "a null in a name": b"X\x00A: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a bad end of a chunk": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "a bad size of a chunk": b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "two hosts": b"Host: b\r\nContent-Length: 2\r\n\r\n{}",
    "two keys": KEY + b"Content-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("rest", SMUGGLING.values(), ids=SMUGGLING)
async def test_what_two_readers_could_understand_differently_is_refused(here: Edge, rest: bytes) -> None:
    told(await here.ask(HEAD + rest), 400)
    assert here.answered == []


async def test_a_compressed_transfer_coding_is_refused(here: Edge) -> None:
    told(await here.ask(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 415)


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"deflate, gzip", b"x"])
async def test_a_compressed_body_is_refused(here: Edge, coding: bytes) -> None:
    told(await here.ask(post(head=KEY + b"Content-Encoding: " + coding + b"\r\n")), 415)


async def test_an_uncompressed_body_may_say_so(here: Edge) -> None:
    assert (await here.ask(post(head=KEY + b"Content-Encoding: identity\r\n")))[0].status == 200


async def test_trailers_are_no_headers(here: Edge) -> None:
    """A key behind the body opens nothing."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = await here.ask(head + b"%x\r\n%b\r\n0\r\n" % (len(CHAT), CHAT) + KEY + b"\r\n")
    told(found, 401)


@pytest.mark.parametrize(
    "start",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost:\r\n",
    ],
)
async def test_a_missing_host_is_refused(here: Edge, start: bytes) -> None:
    told(await here.ask(start + KEY + b"Content-Length: 2\r\n\r\n{}"), 400)


@pytest.mark.parametrize(
    "line",
    [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"POST / HTTP/9.9\r\n\r\n"],
    ids=["words", "TLS", "version"],
)
async def test_what_is_not_http_is_refused(here: Edge, line: bytes) -> None:
    told(await here.ask(line), 400)


async def test_who_speaks_http_2_at_once_is_told(here: Edge) -> None:
    told(await here.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400)


# --- too much ---------------------------------------------------------------------------------------


async def test_a_large_header_is_refused(here: Edge) -> None:
    told(await here.ask(HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n"), 431)


async def test_a_header_without_end_is_refused_before_its_deadline(here: Edge) -> None:
    async with asyncio.timeout(15):
        told(await here.ask(HEAD + b"X-A: ", *[b"a" * 65_536] * 40), 431)


async def test_too_many_headers_are_refused(here: Edge) -> None:
    told(await here.ask(HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(101)) + b"\r\n"), 431)


async def test_a_long_request_line_is_refused(here: Edge) -> None:
    told(await here.ask(b"POST /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"), 431)


async def test_a_body_too_long_by_its_length_can_read_why(here: Edge) -> None:
    """The client sends all of it before it reads, as most do."""
    body = b'{"model":"' + b"a" * 3_000_000 + b'"}'
    found = told(await here.ask(post(body)), 413)
    assert found.error["code"] == "request_too_large"


async def test_a_chunked_body_too_long_can_read_why(here: Edge) -> None:
    chunk = b"%x\r\n%b\r\n" % (50_000, b"a" * 50_000)
    told(await here.ask(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40), 413)
    assert here.answered == []


async def test_a_chunked_body_of_framing_only_is_refused(here: Edge) -> None:
    piece = b"1;" + b"x" * 60_000 + b"\r\na\r\n"
    told(await here.ask(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[piece] * 12), 400)


async def test_a_body_of_the_console_s_routes_has_a_limit_of_its_own() -> None:
    async with edge(HttpLimits()) as here:
        body = b'{"a":"' + b"a" * 300_000 + b'"}'
        told(await here.ask(post(body, path=b"/api/v1/things")), 413)


# --- one connection, several requests ---------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(here: Edge) -> None:
    found = await here.ask(post(last=False) + post(b"{}", last=False) + post())
    assert [reply.status for reply in found] == [200, 400, 200]


async def test_a_slow_answer_is_not_cut_by_what_comes_behind_it(here: Edge) -> None:
    """Half a request, garbage, and too many requests: the first is answered whole, then it is over."""
    for behind in (
        b"POST /v1",
        b"GARBAGE\r\n\r\n",
        post(last=False) * 30,
        HEAD + b"Content-Length: 9\r\n\r\n{",
    ):
        here.hold = True
        raw = await here.connect()
        await raw.send(post(last=False) + behind)
        while not here.held:
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * LIMITS.header_s_max)
        here.hold = False
        here.release()
        found = replies(await raw.rest())
        await raw.close()
        assert (found[0].status, found[0].body) == (200, ANSWER)
        assert all(reply.status in (200, 408) for reply in found)
    await good(here)


async def test_garbage_in_the_middle_of_a_stream_is_not_answered_inside_it(here: Edge) -> None:
    here.hold = True
    raw = await here.connect()
    await raw.send(post(CHAT[:-1] + b',"stream":true}', last=False))
    while not here.held:
        await asyncio.sleep(0.01)
    here.path.nodes[0].tell(here.held[0], "data: first\n\n")
    await raw.until(b"first\n\n\r\n")
    await raw.send(b"\x00\x01GARBAGE\r\n\r\n")
    await asyncio.sleep(0.2)
    here.release()
    assert await raw.rest() == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    await raw.close()


# --- manners ----------------------------------------------------------------------------------------


async def test_an_old_client_is_answered(here: Edge) -> None:
    request = (
        b"POST /v1/chat/completions HTTP/1.0\r\n" + KEY + b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT
    )
    found = await here.ask(request)
    assert [(reply.status, reply.body) for reply in found] == [(200, ANSWER)]
    assert found[0].headers["connection"] == "close"


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"])
async def test_another_method_is_405_and_says_which_is_right(here: Edge, method: bytes) -> None:
    for path in (b"/v1/chat/completions", b"/api/v1/things"):
        found = await here.ask(post(b"", method=method, path=path))
        assert [reply.status for reply in found] == [405]
        assert found[0].headers["allow"] == "post"
        assert (found[0].body == b"") == (method == b"HEAD")


async def test_a_proxy_s_method_is_refused(here: Edge) -> None:
    told(await here.ask(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"), 400)


async def test_the_go_ahead_is_given_only_where_the_body_is_wanted(here: Edge) -> None:
    expecting = KEY + b"Expect: 100-continue\r\n"
    raw = await here.connect()
    await raw.send(post(head=expecting).removesuffix(CHAT))
    assert await raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await raw.send(CHAT)
    assert replies(await raw.rest())[0].status == 200
    await raw.close()
    large = HEAD + b"Expect: 100-continue\r\nContent-Length: 900000\r\n\r\n"
    told(await here.ask(large), 413)
    without_key = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
    told(await here.ask(without_key + b"Content-Length: 9\r\n\r\n"), 401)


OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_an_offer_of_another_protocol_is_passed_over(here: Edge, offer: bytes) -> None:
    """With the body behind the head or in pieces; the connection is used again."""
    request = post(head=KEY + offer, last=False)
    found = await here.ask(request, request[:-20], request[-20:], post(), pause_s=0.1)
    assert [(reply.status, reply.body) for reply in found] == [(200, ANSWER)] * 3
    assert [attempt.body for attempt in here.answered] == [CHAT] * 3


async def test_our_own_mistake_is_told_as_one(here: Edge) -> None:
    found = told(await here.ask(post(b"{}", path=b"/api/v1/mistakes")), 500)
    assert found.error["code"] == "internal_error"
    assert b"Zero" not in found.body


async def test_no_route_answers_in_the_same_shape(here: Edge) -> None:
    for path in (b"/", b"/v1/%00", b"/v1/..%2f..%2fetc", b"/v1/%0d%0aX-A:%201", b"*", b"http://b/v1/x"):
        told(await here.ask(post(path=path)), 404)
    for path in (b"/\xff", b"/\x01"):
        told(await here.ask(post(path=path)), 400)


# --- the body itself --------------------------------------------------------------------------------


def chat(more: bytes) -> bytes:
    return CHAT[:-1] + b"," + more + b"}"


BODIES = {
    "nothing": b"",
    "no object": b"[]",
    "not a number": chat(b'"seed":NaN'),
    "infinity": chat(b'"seed":-Infinity'),
    "beyond a double": chat(b'"seed":1e999'),
    "5000 digits": chat(b'"seed":' + b"1" * 5000),
    "65 deep": chat(b'"x":' + b"[" * 65 + b"]" * 65),
    "65 deep in a prompt": b'{"model":"m","messages":"a","prompt":[1,' + b"[" * 65 + b"]" * 65 + b"]}",
    "65 deep in a message": b'{"model":"m","messages":[{"role":"user","x":' + b"[" * 65 + b"]" * 65 + b"}]}",
    "5000 deep": chat(b'"x":' + b"[" * 5000 + b"]" * 5000),
    "5000 objects deep": chat(b'"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "two models": chat(b'"model":"m"'),
    "two models, one in disguise": chat(b'"mod\\u0065l":"m"'),
    "two streams": chat(b'"stream":true,"stream":false'),
    "not UTF-8": chat(b'"x":"\xff"'),
    "UTF-16": CHAT.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + CHAT,
    "half a surrogate pair": chat(b'"x":"\\ud800"'),
    "half a surrogate pair in a name": chat(b'"\\udc00":1'),
    "a null in the model": CHAT.replace(b'"m"', b'"m\\u0000"'),
    "a line end in the model": CHAT.replace(b'"m"', b'"m\\r\\nX-A: 1"'),
    "a long model": CHAT.replace(b'"m"', b'"' + b"m" * 1000 + b'"'),
    "a comma too many": chat(b""),
    "two values": CHAT + CHAT,
    "a huge limit": chat(b'"max_tokens":' + b"9" * 30),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_that_is_not_right_is_refused(here: Edge, body: bytes) -> None:
    told(await here.ask(post(body)), 400)
    assert here.answered == []


async def test_64_deep_and_names_twice_in_a_text_pass(here: Edge) -> None:
    inside = chat(b'"x":' + b"[" * 62 + b"]" * 62)
    quoted = CHAT.replace(b"hi", b'\\"model\\": \\u006d, \\"model\\": 2')
    nested = chat(b'"metadata":{"model":"a"},"x":{"model":1}')
    for body in (inside, quoted, nested):
        assert [reply.status for reply in await here.ask(post(body))] == [200], body


@pytest.mark.parametrize(
    "body",
    [b'{"role":"user","role":"admin"}', b'{"a":{"b":1,"\\u0062":2}}', b"[" * 5000, b'{"a":NaN}', b'"\xff"'],
)
async def test_a_body_of_the_management_has_every_name_once(here: Edge, body: bytes) -> None:
    told(await here.ask(post(body, path=b"/api/v1/things")), 400)


HEADERS = {
    "class": b"X-Panal-Data-Class: secret\r\n",
    "deadline": b"X-Panal-Deadline-S: nan\r\n",
    "endless": b"X-Panal-Deadline-S: inf\r\n",
    "negative": b"X-Panal-Deadline-S: -1\r\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
async def test_a_header_of_ours_with_nonsense_is_refused(here: Edge, header: bytes) -> None:
    told(await here.ask(post(head=KEY + header)), 400)


@pytest.mark.parametrize("key", [b"Bearer", b"Bearer ", b"Basic good", b"Bearer \xff\xfe", b"good" * 2000])
async def test_a_key_that_is_none_is_401(here: Edge, key: bytes) -> None:
    told(await here.ask(post(head=b"Authorization: " + key + b"\r\n")), 401)


async def test_what_is_refused_is_told_in_one_line_of_json(here: Edge) -> None:
    found = await here.ask(post(CHAT.replace(b'"m"', b'"<script>\\u2028"')))
    assert json.loads(told(found, 400).body)["error"]["param"] == "model"


async def strangers_of(here: Edge, count: int, said: bytes = b"") -> list[Raw]:
    """Connections from another address, opened together, that say this and then nothing."""
    found = await asyncio.gather(*[here.connect("127.0.0.2") for _ in range(count)])
    for raw in found:
        await raw.send(said)
    return list(found)


async def test_strangers_beyond_their_share_wait_and_silent_ones_make_room() -> None:
    """Eight places of one address: full of silent ones, of half headers, and of those that showed a key."""
    async with edge(HttpLimits(), Door(1000, 8)) as here:
        for said in (b"", HEAD):
            crowd = await strangers_of(here, 40, said)
            async with asyncio.timeout(HttpLimits().header_s_max):
                assert (await here.ask(post(), address="127.0.0.2"))[0].status == 200
                assert (await here.ask(post()))[0].status == 200
            for raw in crowd:
                await raw.close()
        known = await strangers_of(here, 40, post(last=False))
        for raw in known:
            assert b"200 OK" in await raw.until(ANSWER)
        assert len(here.door) == 40
        assert (await here.ask(post(), address="127.0.0.2"))[0].status == 200
        for raw in known:
            await raw.send(post(last=False))
            assert b"200 OK" in await raw.until(ANSWER)
            await raw.close()


async def test_beyond_the_limit_for_all_silent_ones_are_closed_first_then_new_ones_refused() -> None:
    async with edge(HttpLimits(), Door(20, 100)) as here:
        here.hold = True
        busy = await strangers_of(here, 18, post(last=False))
        async with asyncio.timeout(10.0):
            while len(here.held) < 18:
                await asyncio.sleep(0.01)
        silent = await strangers_of(here, 2)
        refused = told(await here.ask(post()), 503)
        assert refused.headers["retry-after"] == "1"
        for raw in silent:
            assert await raw.rest() == b""
            await raw.close()
        here.hold = False
        assert (await here.ask(post()))[0].status == 200
        here.release()
        for raw in busy:
            assert b"200 OK" in await raw.until(ANSWER)
            await raw.close()


@pytest.mark.timeout(180)
async def test_two_thousand_half_open_connections_cost_good_clients_nothing() -> None:
    """From another address and from the same one; the limits are those that are shipped."""
    room_for_connections(6000)
    async with edge(HttpLimits(), Door(8192, 64)) as here:
        kept = await here.connect()
        crowd = []
        for number in range(20):
            crowd += await strangers_of(here, 100, HEAD if number % 2 else b"")
            async with asyncio.timeout(10.0):
                await good(here)
                await kept.send(post(last=False))
                assert b"200 OK" in await kept.until(ANSWER)
                assert (await here.ask(post(), address="127.0.0.2"))[0].status == 200
        for raw in [kept, *crowd]:
            await raw.close()
        async with asyncio.timeout(10.0):
            while len(here.door):
                await asyncio.sleep(0.05)


async def test_the_edge_answers_a_good_client_while_it_refuses(here: Edge) -> None:
    """All at once, each on a connection of its own."""
    begun_s = time.monotonic()
    bad = [asyncio.create_task(here.ask(HEAD + rest)) for rest in SMUGGLING.values()]
    half = [asyncio.create_task(here.ask(HEAD)) for _ in range(200)]
    for _ in range(20):
        await good(here)
    for found in await asyncio.gather(*bad):
        told(found, 400)
    for found in await asyncio.gather(*half):
        told(found, 408)
    assert time.monotonic() - begun_s < 60.0
