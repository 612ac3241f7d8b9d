"""The routes beside generation: models, health, metrics, the block pool, cancelling, version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from .. import __version__
from ..actors.inventory import Holding, Leak, Waiting
from ..spec.params import InputError, Method
from .boundary import ENGINE
from .chat import ChatDialect
from .completions import CompletionDialect
from .errors import model_not_found

if TYPE_CHECKING:
    from ..actors.engine import ServingInfo

_PREFIXES = (ChatDialect.id_prefix, CompletionDialect.id_prefix)


class SpeculationOffer(msgspec.Struct, frozen=True):
    methods: tuple[Method, ...]
    default: Method | None
    k: int


class ModelCard(msgspec.Struct, frozen=True):
    """exact: whether the same request, with the same seed, gives the same text whatever else is
    served beside it and whoever drafts."""

    id: str
    created: int
    max_model_len: int
    speculation: SpeculationOffer
    exact: bool
    object: str = "model"
    owned_by: str = "paceline"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class PoolReport(msgspec.Struct, frozen=True):
    """`ok`: the audit found no problem. Blocks by state; running and waiting count sequences. The
    rest, as an Inspection and `actors/inventory.py` describe it, says who holds what, the biggest
    owners first, and who has leaked what, with a count of the blocks."""

    blocks: dict[str, int]
    ok: bool
    problems: tuple[str, ...]
    running: int
    waiting: int
    step: int
    landed: int
    leaked_blocks: int
    leases: tuple[Holding, ...]
    fences: tuple[Waiting, ...]
    leaks: tuple[Leak, ...]


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(document), status=status, content_type="application/json"
    )


def _card(info: ServingInfo) -> ModelCard:
    offer = SpeculationOffer(info.methods, info.default_method, info.default_k)
    return ModelCard(info.model, info.created, info.max_model_len, offer, info.exact)


async def models(request: web.Request) -> web.Response:
    return _json(ModelList([_card(request.app[ENGINE].info)]))


async def model(request: web.Request) -> web.Response:
    info, ident = request.app[ENGINE].info, request.match_info["id"]
    if ident != info.model:
        raise model_not_found(ident)
    return _json(_card(info))


async def live(request: web.Request) -> web.Response:
    """200 whenever the event loop turns."""
    return _json({"status": "live"})


async def ready(request: web.Request) -> web.Response:
    """200 when requests are taken, else 503 with the engine's state."""
    state = request.app[ENGINE].state
    return _json({"status": state}, 200 if state == "ready" else 503)


async def metrics(request: web.Request) -> web.Response:
    body, content_type = request.app[ENGINE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": content_type})


async def pool(request: web.Request) -> web.Response:
    """The block pool as its auditor sees it."""
    seen = await request.app[ENGINE].inspect()
    return _json(
        PoolReport(
            blocks=seen.blocks,
            ok=not seen.problems,
            problems=seen.problems,
            running=seen.running,
            waiting=seen.waiting,
            step=seen.step,
            landed=seen.landed,
            leaked_blocks=len({block for leak in seen.leaks for block in leak.blocks}),
            leases=seen.leases,
            fences=seen.fences,
            leaks=seen.leaks,
        )
    )


async def cancel(request: web.Request) -> web.Response:
    """Cancel by request id or by an answer's id. Raises 404 when no such request is open."""
    engine, ident = request.app[ENGINE], request.match_info["id"]
    names = [ident, *(ident.removeprefix(it) for it in _PREFIXES if ident.startswith(it))]
    if not any(engine.abandon(name, "delete") for name in names):
        raise InputError(
            f"no open request has the id {ident!r}", status=404, code="request_not_found"
        )
    return _json({"id": ident, "status": "cancelled"})


async def version(request: web.Request) -> web.Response:
    return _json({"version": __version__})
