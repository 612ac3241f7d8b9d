"""KV storage: layout, zeros, bytes as the arithmetic says, laziness, scrubbing."""

import mmap
from pathlib import Path

import pytest
import torch

from paceline.kv.capacity import KvShape, pool_blocks
from paceline.kv.tensors import allocate, allocated_bytes, scrub

MIB = 2**20
STATM = Path("/proc/self/statm")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_layout_zeros_and_alignment(dtype):
    shape = KvShape(layers=3, kv_heads=2, head_dim=8, element_bytes=dtype.itemsize)
    caches = allocate(shape, blocks=5, block_size=4, dtype=dtype, device="cpu")
    assert [tuple(cache.shape) for cache in caches] == [(4, 5, 32)] * 3
    assert all(cache.dtype == dtype and cache.is_contiguous() for cache in caches)
    assert all(not cache.count_nonzero() for cache in caches)
    assert all(cache.data_ptr() % 64 == 0 for cache in caches)
    assert len({cache.data_ptr() for cache in caches}) == 3


def test_layers_do_not_share_memory():
    first, second = allocate(KvShape(2, 1, 8), 2, 4, torch.bfloat16, "cpu")
    first.fill_(1)
    assert not second.count_nonzero()


def test_a_budgeted_pool_takes_exactly_the_bytes_of_its_blocks():
    target, draft = KvShape(4, 2, 16), KvShape(1, 2, 8)
    blocks = pool_blocks(100_000, 16, target, draft)
    spent = sum(
        allocated_bytes(allocate(shape, blocks, 16, torch.bfloat16, "cpu"))
        for shape in (target, draft)
    )
    assert spent == blocks * 16 * (target.bytes_per_token + draft.bytes_per_token)
    assert 0 <= 100_000 - spent < spent // blocks


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_memory_is_committed_when_it_is_written_and_block_by_block():
    shape = KvShape(layers=32, kv_heads=8, head_dim=128)
    before = resident()
    caches = allocate(shape, 512, 16, torch.bfloat16, "cpu")
    assert allocated_bytes(caches) == 1024 * MIB
    assert resident() - before < 50 * MIB
    for cache in caches:
        cache[:, 0] = 1
    assert resident() - before < 50 * MIB, "one block of 2 MiB committed far more than itself"
    assert all(not cache[:, 1].count_nonzero() for cache in caches)


def test_scrub_zeroes_the_named_blocks_and_no_other():
    caches = allocate(KvShape(2, 2, 8), 6, 4, torch.bfloat16, "cpu")
    kept = [0, 2, 3, 5]
    for cache in caches:
        cache.fill_(1)
    scrub(caches, [4, 1])
    for cache in caches:
        assert not cache[:, [1, 4]].count_nonzero()
        assert cache[:, kept].eq(1).all()
    scrub(caches, [])
    assert all(cache[:, kept].eq(1).all() for cache in caches)
    scrub([], [1])


def test_misuse_is_an_assertion_with_a_sentence():
    with pytest.raises(AssertionError, match="2-byte elements cannot be stored"):
        allocate(KvShape(1, 1, 8), 1, 4, torch.float32, "cpu")
    with pytest.raises(AssertionError, match="0 blocks"):
        allocate(KvShape(1, 1, 8), 0, 4, torch.bfloat16, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_storage_on_a_device_is_zero_and_scrubs():
    caches = allocate(KvShape(2, 2, 8), 6, 4, torch.bfloat16, "cuda")
    assert all(cache.is_cuda and not cache.count_nonzero() for cache in caches)
    caches[0].fill_(1)
    scrub(caches, [2])
    assert not caches[0][:, 2].count_nonzero()
