"""Capacity arithmetic against published numbers, exact enumeration, and made-up machines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kv.capacity import (
    KvShape,
    block_bytes,
    cgroup_available,
    concurrency,
    cpu_budget,
    format_names,
    gpu_budget,
    meminfo_available,
    pool_blocks,
    read_available_memory,
)

GIB = 2**30
SHAPES = st.builds(
    KvShape,
    st.integers(1, 80),
    st.integers(1, 32),
    st.sampled_from([64, 128]),
    st.integers(1, 4),
    st.integers(0, 5000),
)


def test_published_sizes():
    assert KvShape(32, 32, 128, 2).bytes_per_token == 524_288
    assert KvShape(80, 8, 128, 2).bytes_per_token == 327_680
    assert KvShape(32, 8, 128, 2).bytes_per_token * 4096 == 512 * 2**20


def test_a_token_counts_every_element_of_every_layer():
    shape = KvShape(layers=3, kv_heads=2, head_dim=5, element_bytes=4)
    elements = [
        (layer, part, head, place)
        for layer in range(3)
        for part in ("key", "value")
        for head in range(2)
        for place in range(5)
    ]
    assert shape.bytes_per_token == 4 * len(elements)


@given(SHAPES, st.none() | SHAPES, st.integers(0, 2**36), st.sampled_from([8, 16, 64]))
def test_the_pool_fits_the_budget_and_one_more_block_would_not(target, draft, budget, block_size):
    blocks = pool_blocks(budget, block_size, target, draft)
    models = [target, draft] if draft else [target]
    both = sum(block_size * it.bytes_per_token + it.block_state for it in models)
    assert block_bytes(block_size, target, draft) == both
    assert blocks * both <= budget < (blocks + 1) * both


@given(SHAPES, st.sampled_from([1, 16, 64]), st.integers(0, 3))
def test_eight_bits_count_every_number_and_every_scale(shape, block_size, full_layers):
    if shape.layers <= 2 * full_layers:
        with pytest.raises(ValueError, match=f"none of {shape.layers} layers"):
            shape.in_format("int8", full_layers)
        return
    found = shape.in_format("int8", full_layers)
    small = shape.layers - 2 * full_layers
    heads, dim = shape.kv_heads, shape.head_dim
    codes = 2 * block_size * heads * dim
    scales = 2 * block_size * heads + heads * dim
    full = 2 * full_layers * codes * shape.element_bytes
    assert found.block_bytes(block_size) == small * (codes + scales) + full + shape.block_state
    assert found.bytes_per_token * block_size == found.block_bytes(block_size) - (
        small * heads * dim + shape.block_state
    )
    assert shape.in_format("auto") == shape
    assert shape.stage_bytes(block_size, 9) == 0


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_eight_bits_are_half_of_sixteen_within_a_twentieth(head_dim):
    plain = KvShape(30, 3, head_dim)
    share = plain.in_format("int8").block_bytes(16) / plain.block_bytes(16)
    assert 0.5 < share <= 0.525


def test_formats_are_named_once_where_they_are_the_same():
    plain = KvShape(4, 1, 64)
    small = plain.in_format("int8")
    assert format_names("bfloat16", plain) == "bfloat16"
    assert format_names("bfloat16", small, small) == "int8"
    assert format_names("bfloat16", small, plain) == "int8, draft bfloat16"
    assert format_names("float32", plain, small) == "float32, draft int8"


def test_a_negative_budget_buys_nothing():
    assert pool_blocks(-1, 16, KvShape(1, 1, 64)) == 0


@given(st.integers(0, 5000), st.sampled_from([1, 16, 64]), st.integers(1, 9000))
def test_concurrency_is_how_many_sequences_fit(blocks, block_size, length):
    whole, left = 0, blocks
    needed = len(range(0, length, block_size))
    while left >= needed:
        left -= needed
        whole += 1
    found = concurrency(blocks, block_size, length)
    assert int(found) == whole
    assert found - whole == pytest.approx(left / needed)


def test_cpu_budget_takes_what_is_wanted_but_at_most_half():
    assert cpu_budget(10 * GIB, 1000 * 1024) == 1000 * 1024
    assert cpu_budget(10 * GIB, 2**40) == 5 * GIB


def test_gpu_budget_is_the_share_less_what_else_must_fit():
    assert gpu_budget(80 * GIB, 0.5, 16 * GIB, 4 * GIB) == 20 * GIB
    assert gpu_budget(8 * GIB, 0.9, 16 * GIB, 0) == 0
    for share in (0.0, -0.1, 1.01):
        with pytest.raises(ValueError, match="utilization"):
            gpu_budget(GIB, share, 0, 0)


def test_meminfo_reads_the_available_and_not_the_free_memory():
    text = "MemTotal:       100 kB\nMemFree:         10 kB\nMemAvailable:    60 kB\n"
    assert meminfo_available(text) == 60 * 1024
    with pytest.raises(ValueError, match="MemAvailable"):
        meminfo_available("MemTotal: 100 kB\n")


def test_a_control_group_without_a_limit_does_not_limit():
    assert cgroup_available("max\n", "123\n") is None
    assert cgroup_available("9223372036854771712\n", "123\n") is None


def test_a_control_group_gives_back_its_file_cache():
    assert cgroup_available("1000\n", "400\n") == 600
    assert cgroup_available("1000\n", "400\n", "anon 300\ninactive_file 100\n") == 700
    version_1 = "inactive_file 1\ntotal_inactive_file 100\n"
    assert cgroup_available("1000\n", "400\n", version_1) == 700
    assert cgroup_available("1000\n", "1400\n") == 0
    assert cgroup_available("1000\n", "50\n", "inactive_file 100\n") == 1000


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemAvailable: 1000 kB\n"}


def group(folder: str, limit: str, used: str, *, version: int = 2) -> dict[str, str]:
    names = ("memory.max", "memory.current")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    base = f"sys/fs/cgroup/{folder}"
    return {f"{base}/{names[0]}": limit, f"{base}/{names[1]}": used}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1_024_000),
        ({"proc/self/cgroup": "0::/\n"}, 1_024_000),
        ({"proc/self/cgroup": "0::/a/b\n"} | group("a/b", "9000\n", "1000\n"), 8000),
        (
            {"proc/self/cgroup": "0::/a/b\n"}
            | group("a/b", "max\n", "1\n")
            | group("a", "5000\n", "2000\n"),
            3000,
        ),
        ({"proc/self/cgroup": "0::/outside\n"} | group(".", "7000\n", "1000\n"), 6000),
        (
            {"proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n0::/\n"}
            | group("memory/a", "9000\n", "4000\n", version=1),
            5000,
        ),
        ({"proc/self/cgroup": "0::/a\n"} | group("a", "9000000000\n", "0\n"), 1_024_000),
        (
            {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.stat": "inactive_file 500\n"}
            | group("a", "9000\n", "1000\n"),
            8500,
        ),
    ],
    ids=["bare", "root", "own", "parent", "namespaced", "version-1", "roomy", "file-cache"],
)
def test_available_memory_is_the_least_of_machine_and_groups(tmp_path, files, expected):
    assert read_available_memory(machine(tmp_path, MEMINFO | files)) == expected


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs /proc")
def test_this_machine_has_some_memory_and_not_more_than_all():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < read_available_memory() <= total
