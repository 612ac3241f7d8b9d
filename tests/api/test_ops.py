"""Models, health, metrics, the pool, version."""

from __future__ import annotations

import msgspec
import pytest
from fake_engine import MODEL

from paceline import __version__
from paceline.api.server import make_app, serve

CARD = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "paceline",
    "max_model_len": 2048,
    "speculation": {"methods": ["ngram", "draft"], "default": "ngram", "k": 4},
    "exact": True,
}


async def test_models(edge):
    assert await edge.get_json("/v1/models") == {"object": "list", "data": [CARD]}
    assert await edge.get_json(f"/v1/models/{MODEL}") == CARD
    error = (await edge.get_json("/v1/models/other", status=404))["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_health(edge):
    for state, status in (("ready", 200), ("loading", 503), ("draining", 503), ("down", 503)):
        edge.engine.state = state
        assert await edge.get_json("/health/live") == {"status": "live"}
        assert await edge.get_json("/health/ready", status) == {"status": state}


async def test_metrics(edge):
    async with edge.http.get(edge.url + "/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert await response.read() == b"# HELP x y\n"


@pytest.mark.parametrize("problems", [(), ("block 3 is owned twice",)])
async def test_the_pool(edge, problems):
    edge.engine.inspection = msgspec.structs.replace(edge.engine.inspection, problems=problems)
    assert await edge.get_json("/debug/kv") == {
        "blocks": {"total": 9, "free": 6, "cached": 1, "held": 2, "fenced": 0},
        "ok": not problems,
        "problems": list(problems),
        "running": 2,
        "waiting": 1,
    }


async def test_cancelling_what_is_not_open(edge):
    async with edge.http.delete(edge.url + "/v1/requests/nobody") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "request_not_found"


async def test_version(edge):
    assert await edge.get_json("/version") == {"version": __version__}


async def test_a_port_that_is_taken(edge):
    with pytest.raises(OSError, match="address already in use"):
        await serve(make_app(edge.engine), "127.0.0.1", edge.site.port)
