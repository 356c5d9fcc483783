"""Requests over our connections: whole answers come as they are, and none is endless or too large."""

import gzip
import json
import ssl
import time
import zlib

import httpx
import pytest
from bad_server import Fault, always, bomb, chunked, drips, fine, huge, trickle

from sextant.tools.models.transport.http_client import ServerConnections, TooLarge, bounding

LARGEST = 1 << 20


def connect():
    return httpx.Client(transport=ServerConnections(ssl.create_default_context(), ""))


def post(bad, client=None):
    request = {"messages": [{"role": "user", "content": "?"}]}
    client = client or connect()
    return client.post(f"{bad.url}/chat/completions", json=request, timeout=30)


def packed(encoding, pack):
    headers = (("content-encoding", encoding),)
    return Fault(
        "packed", headers=headers, spoil=lambda answer, _: pack(json.dumps(answer).encode())
    )


def deflate_bare(data):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "Deflate": deflate_bare}


@pytest.mark.parametrize(
    "fault",
    [fine(), chunked(), *(packed(*one) for one in PACKED.items())],
    ids=["fine", "chunked", *PACKED],
)
def test_an_answer_within_the_bounds_is_what_httpx_alone_makes_of_it(bad, fault):
    bad.script = always(fault)
    expected = post(bad, httpx).json()
    with bounding(time.monotonic() + 60, LARGEST), connect() as client:
        first, second = (post(bad, client) for _ in range(2))  # on one connection
    assert first.json() == second.json() == expected and "choices" in expected


@pytest.mark.parametrize(
    "fault", [huge(), bomb("gzip"), bomb("deflate")], ids=["plain", "gzip", "deflate"]
)
def test_an_answer_that_is_too_large_once_unpacked_is_given_up_on_the_way(bad, fault):
    bad.script = always(fault)
    with (
        bounding(time.monotonic() + 60, LARGEST),
        pytest.raises(TooLarge, match="larger than 1,048,576 bytes"),
    ):
        post(bad)


def test_an_answer_in_an_encoding_that_was_not_asked_for_is_none(bad):
    bad.script = always(packed("br", bytes))
    with (
        bounding(time.monotonic() + 60, LARGEST),
        pytest.raises(httpx.DecodingError, match="packed as br"),
    ):
        post(bad)


@pytest.mark.parametrize("way", [drips(0.05), trickle(0.05).way], ids=["body", "head"])
def test_an_answer_that_comes_byte_by_byte_is_waited_for_until_the_deadline_alone(bad, way):
    bad.script = always(Fault("slow", way=way))
    with bounding(time.monotonic() + 1, LARGEST), pytest.raises(httpx.TimeoutException):
        post(bad)
