"""The tiny pair and its plain texts, and one thread for it: tiny models gain nothing from a second
one, and lose much when the machine is busy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.tiny_pair import GREEDY, SAMPLED, Models, Texts, plain_texts, save_models


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("pair"))


FORMATS = [
    pytest.param((torch.float32, "auto"), id="fp32"),
    pytest.param((torch.bfloat16, "auto"), id="bf16"),
    pytest.param((torch.float32, "int8"), id="fp32-int8"),
]


@pytest.fixture(scope="module", params=FORMATS)
def models(request: pytest.FixtureRequest, directory: Path) -> Models:
    return Models(directory, *request.param)


@pytest.fixture(scope="module")
def texts(models: Models) -> Texts:
    return Texts(plain_texts(models, GREEDY), plain_texts(models, SAMPLED))
