"""What of a server's memory may grow without being a leak."""

from typing import Any

import pytest

from appliance.bench.server_facts import bytes_without_cache

MIB = 2**20


def snapshot(device: str, cached_blocks: int) -> dict[str, Any]:
    kv = {"used_blocks": 3, "cached_blocks": cached_blocks, "pool_bytes": 100 * MIB, "num_blocks": 50}
    resident = (600 + 2 * (3 + cached_blocks)) * MIB if device == "cpu" else 600 * MIB
    return {"memory": {"process_resident_bytes": resident}, "kv": kv, "model": {"device": device}}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_kv_cache_that_fills_is_no_leak(device: str) -> None:
    assert [bytes_without_cache(snapshot(device, n)) for n in (0, 47)] == [600 * MIB] * 2


def test_a_server_whose_model_still_loads_tells_its_memory() -> None:
    loading = {"memory": {"process_resident_bytes": 7}, "kv": None, "model": None}
    assert bytes_without_cache(loading) == 7
