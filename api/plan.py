"""GET /v1/plan: what the running server was expected to hold, beside what it holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from ..actors.engine import ServingInfo
from ..actors.forecast import Forecast, for_requests, with_bandwidth
from ..spec.params import InputError
from .boundary import ENGINE

LENGTHS = ("p95_prompt", "p95_output")
BANDWIDTH = "bandwidth"


class Holdings(msgspec.Struct, frozen=True):
    """weight_bytes: of both models. kv_bytes: of the pool, and what a draft keeps of its blocks."""

    weight_bytes: int
    kv_bytes: int
    blocks: int


class Deviation(msgspec.Struct, frozen=True):
    """What was allocated beyond what was expected, as a share of that: 0.01 is one percent."""

    weight_bytes: float
    kv_bytes: float
    blocks: float


class PlanReport(msgspec.Struct, frozen=True):
    expected: Forecast
    allocated: Holdings
    deviation: Deviation


async def plan(request: web.Request) -> web.Response:
    """The report. The query may say what requests (`p95_prompt` and `p95_output`, in tokens) and
    what `bandwidth` (bytes a second) to plan for. Raises InputError."""
    info = request.app[ENGINE].info
    if info.forecast is None:
        raise InputError("nothing was planned for this server", status=404, code="no_plan")
    body = msgspec.json.encode(report(info, info.forecast, request.query))
    return web.Response(body=body, content_type="application/json")


def report(info: ServingInfo, expected: Forecast, query: Mapping[str, str]) -> PlanReport:
    """Expected against allocated. Raises InputError for a query that cannot be read."""
    allocated = Holdings(info.weight_bytes, info.kv_bytes, info.blocks)
    pool = expected.pool
    foreseen = Holdings(expected.weight_bytes, pool.bytes, pool.blocks)
    shares = (
        round(getattr(allocated, name) / getattr(foreseen, name) - 1, 6)
        for name in Deviation.__struct_fields__
    )
    return PlanReport(_asked(expected, query), allocated, Deviation(*shares))


def _asked(known: Forecast, query: Mapping[str, str]) -> Forecast:
    for name in query:
        if name not in (*LENGTHS, BANDWIDTH):
            raise InputError(f"unknown parameter {name}", param=name)
    if any(name in query for name in LENGTHS):
        for name in LENGTHS:
            if name not in query:
                raise InputError(f"{' and '.join(LENGTHS)} go together", param=name)
        prompt, output = (int(_number(query, name, int)) for name in LENGTHS)
        known = for_requests(known, prompt, output, "given")
    if BANDWIDTH in query:
        known = with_bandwidth(known, _number(query, BANDWIDTH, float), "given")
    return known


def _number(query: Mapping[str, str], name: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(query[name])
    except ValueError:
        value = 0
    if not 0 < value < 2**62:
        raise InputError(f"{name} must be a number above 0", param=name)
    return value
