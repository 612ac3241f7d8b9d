"""KV storage: layout, zeros, bytes as the arithmetic says, laziness, scrubbing."""

import mmap
from pathlib import Path

import pytest
import torch

from paceline.kv.capacity import KvShape, pool_blocks
from paceline.kv.layers import Int8Layer, PlainLayer
from paceline.kv.tensors import KvStore, allocate

MIB = 2**20
STATM = Path("/proc/self/statm")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * mmap.PAGESIZE


def plain_cells(kv: KvStore) -> list[torch.Tensor]:
    return [layer.cells for layer in kv.layers if isinstance(layer, PlainLayer)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_layout_zeros_and_alignment(dtype):
    shape = KvShape(layers=3, kv_heads=2, head_dim=8, element_bytes=dtype.itemsize)
    caches = plain_cells(allocate(shape, blocks=5, block_size=4, dtype=dtype, device="cpu"))
    assert [tuple(cache.shape) for cache in caches] == [(4, 5, 32)] * 3
    assert all(cache.dtype == dtype and cache.is_contiguous() for cache in caches)
    assert all(not cache.count_nonzero() for cache in caches)
    assert all(cache.data_ptr() % 64 == 0 for cache in caches)
    assert len({cache.data_ptr() for cache in caches}) == 3


def test_layers_do_not_share_memory():
    first, second = plain_cells(allocate(KvShape(2, 1, 8), 2, 4, torch.bfloat16, "cpu"))
    first.fill_(1)
    assert not second.count_nonzero()


def test_a_budgeted_pool_takes_exactly_the_bytes_of_its_blocks():
    target, draft = KvShape(4, 2, 16), KvShape(1, 2, 8)
    blocks = pool_blocks(100_000, 16, target, draft)
    spent = sum(
        allocate(shape, blocks, 16, torch.bfloat16, "cpu").nbytes for shape in (target, draft)
    )
    assert spent == blocks * 16 * (target.bytes_per_token + draft.bytes_per_token)
    assert 0 <= 100_000 - spent < spent // blocks


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_memory_is_committed_when_it_is_written_and_block_by_block():
    shape = KvShape(layers=32, kv_heads=8, head_dim=128)
    before = resident()
    kv = allocate(shape, 512, 16, torch.bfloat16, "cpu")
    caches = plain_cells(kv)
    assert kv.nbytes == 1024 * MIB
    assert resident() - before < 50 * MIB
    for cache in caches:
        cache[:, 0] = 1
    assert resident() - before < 50 * MIB, "one block of 2 MiB committed far more than itself"
    assert all(not cache[:, 1].count_nonzero() for cache in caches)


def test_scrub_zeroes_the_named_blocks_and_no_other():
    kv = allocate(KvShape(2, 2, 8), 6, 4, torch.bfloat16, "cpu")
    caches = plain_cells(kv)
    kept = [0, 2, 3, 5]
    for cache in caches:
        cache.fill_(1)
    kv.scrub([4, 1])
    for cache in caches:
        assert not cache[:, [1, 4]].count_nonzero()
        assert cache[:, kept].eq(1).all()
    kv.scrub([])
    assert all(cache[:, kept].eq(1).all() for cache in caches)


INT8 = KvShape(6, 3, 64).in_format("int8", 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_eight_bits_take_exactly_the_bytes_that_the_arithmetic_says(dtype, block_size):
    for full_layers in (0, 2):
        shape = KvShape(6, 3, 64, dtype.itemsize).in_format("int8", full_layers)
        kv = allocate(shape, 7, block_size, dtype, "cpu", slots=5)
        assert kv.nbytes == 7 * shape.block_bytes(block_size)
        stages = [layer.cells.stage for layer in kv.layers if isinstance(layer, Int8Layer)]
        assert sum(stage.nbytes for stage in stages) == shape.stage_bytes(block_size, 5)


def test_eight_bits_begin_and_end_with_layers_of_full_precision_as_asked():
    kv = allocate(INT8, 3, 16, torch.bfloat16, "cpu", slots=1)
    kinds = [type(layer) for layer in kv.layers]
    assert kinds == [PlainLayer, *(4 * [Int8Layer]), PlainLayer]
    tensors = [tensor for layer in kv.layers for tensor in layer.tensors]
    assert all(not tensor.count_nonzero() and tensor.is_contiguous() for tensor in tensors)
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


def test_misuse_is_an_assertion_with_a_sentence():
    with pytest.raises(AssertionError, match="2-byte elements cannot be stored"):
        allocate(KvShape(1, 1, 8), 1, 4, torch.float32, "cpu")
    with pytest.raises(AssertionError, match="0 blocks"):
        allocate(KvShape(1, 1, 8), 0, 4, torch.bfloat16, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_storage_on_a_device_is_zero_and_scrubs():
    kv = allocate(KvShape(2, 2, 8), 6, 4, torch.bfloat16, "cuda")
    caches = plain_cells(kv)
    assert all(cache.is_cuda and not cache.count_nonzero() for cache in caches)
    caches[0].fill_(1)
    kv.scrub([2])
    assert not caches[0][:, 2].count_nonzero()
