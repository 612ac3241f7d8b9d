"""Makes the helpers beside it importable, and serves an edge to every test that asks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import FakeEngine
from served import running


@pytest.fixture
async def edge():
    async with running(FakeEngine()) as served:
        yield served
