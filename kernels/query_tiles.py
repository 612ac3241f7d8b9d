"""How a step's rows are cut into query tiles, and which tiles are computed together.

Pure host work over counts, called once a step by `attention.plan_attention`. Every choice made
here is about speed: a row's result has the same bits whatever tile and group it is put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TILE = 64

# Cost of starting one more group of query tiles, and the most work put into one, in units of a
# query position times a key tile. Found by measurement on two CPU cores.
GROUP_COST = 256
GROUP_LIMIT = 4096
# Matrix products of fewer positions take about as long as with this many.
FEWEST_POSITIONS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive packed rows: positions start … start+count-1 of one sequence.

    blocks: the sequence's block table, long enough for all these positions. What stands in it for
    positions before the first key tile is not looked at.
    """

    start: int
    count: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class QueryTile:
    """`count` packed rows from `row` on, at positions from `start` on; `tiles` of keys to read, of
    which tile `first` of the sequence is the first."""

    row: int
    start: int
    count: int
    first: int
    tiles: int
    blocks: Sequence[int]

    @property
    def positions(self) -> int:
        return max(self.count, FEWEST_POSITIONS)


def first_key_tile(position: int, window: int | None) -> int:
    """The first key tile that is read for the query tile of a position: a function of that tile
    alone, so that the order of a row's sums is one of its position alone.

    window: how many keys a query sees, its own among them; None: all before it.
    """
    if window is None:
        return 0
    return max(0, position // TILE * TILE - window + 1) // TILE


def cut(spans: Sequence[Span], window: int | None = None) -> list[QueryTile]:
    tiles, row = [], 0
    for span in spans:
        start, end = span.start, span.start + span.count
        while start < end:
            first = first_key_tile(start, window)
            # A short span is one tile wherever it lies: a second would cost more than it saves.
            # But where a window moves on within it, its rows begin with different keys.
            whole = span.count <= TILE // 2 and first_key_tile(end - 1, window) == first
            stop = end if whole else min(end, (start // TILE + 1) * TILE)
            last = -(-stop // TILE)
            tiles.append(QueryTile(row, start, stop - start, first, last - first, span.blocks))
            row += stop - start
            start = stop
    return tiles


def gather(tiles: list[QueryTile]) -> list[list[QueryTile]]:
    """Groups of tiles of like size: one more is started where padding would cost more than it."""
    groups: list[list[QueryTile]] = []
    most = work = 0
    for tile in sorted(tiles, key=lambda tile: (tile.positions, tile.tiles), reverse=True):
        own = tile.positions * tile.tiles
        most = max(most, tile.tiles)
        padded = groups[-1][0].positions * most * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded - work - own > GROUP_COST or padded > GROUP_LIMIT:
            groups.append([])
            most, work = tile.tiles, 0
        groups[-1].append(tile)
        work += own
    return groups
