"""What does not fit is an error that names it, and never a crash."""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cpu.abi import NormRole, Role, Source
from kernels.cpu.library import NativeError, NativeLibrary, NativeUnsupported
from kernels.cpu.native import NativeModelBuilder
from kernels.cpu.structs import SomeLayers


@pytest.fixture(scope="module")
def network(rig):
    return rig.network(rig.shape(num_layers=1, windows=(None,)))


@pytest.fixture
def model(library: NativeLibrary, rig, network):
    with network.native(library, num_threads=2) as made:
        made.bind_kv(rig.pages(network.shape, 6))
        yield made


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"head_size": 24}, "head_size 24"),
        ({"head_size": 512}, "head_size 512"),
        ({"level": "mmx"}, "level 'mmx' does not run on this machine"),
    ],
)
def test_unsupported_networks_name_what_is_not_supported(library: NativeLibrary, network, changes, problem):
    with pytest.raises(NativeUnsupported, match=problem):
        NativeModelBuilder(library, network.config(**changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_kv_heads": 5}, "not a multiple"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"windows": ()}, "one item for each"),
        ({"num_experts": 8}, "num_active_experts is 0; it must be 1 to 8"),
        ({"num_experts": 8, "num_active_experts": 9, "expert_size": 32}, "num_active_experts is 9"),
    ],
)
def test_contradictory_networks_are_refused(library: NativeLibrary, network, changes, problem):
    with pytest.raises(NativeError, match=problem):
        NativeModelBuilder(library, network.config(**changes))


def test_builder_says_what_is_missing_or_of_the_wrong_shape(library: NativeLibrary, network):
    with NativeModelBuilder(library, network.config()) as builder:
        with pytest.raises(NativeError, match=r"embedding .* is missing"):
            builder.finish()
        with pytest.raises(NativeError, match="the network needs 96 x 96"):
            builder.set_linear(Role.QUERY, 0, np.zeros((95, 96), np.float32), Source.F32)
        with pytest.raises(NativeError, match="layer is 7"):
            builder.set_linear(Role.QUERY, 7, np.zeros((96, 96), np.float32), Source.F32)
        with pytest.raises(NativeError, match="norm 5 has no place in this network"):
            builder.set_norm(NormRole.QUERY, 0, np.ones(16, np.float32))
        with pytest.raises(NativeError, match="it needs 96"):
            builder.set_norm(NormRole.FINAL, 0, np.ones(95, np.float32))
    with pytest.raises(NativeError, match="the builder is spent"):
        builder.finish()


def test_experts_are_checked_as_other_matrices_are(library: NativeLibrary, network):
    experts = {"num_experts": 3, "num_active_experts": 2, "expert_size": 32}
    rows = np.zeros((32, 96), np.float32)
    with NativeModelBuilder(library, network.config(**experts)) as builder:
        with pytest.raises(NativeError, match="expert is 3"):
            builder.set_expert(Role.GATE, 0, 3, rows, Source.F32)
        with pytest.raises(NativeError, match="expert 1 is 32 x 96; the network needs 96 x 32"):
            builder.set_expert(Role.DOWN, 0, 1, rows, Source.F32)
        with pytest.raises(NativeError, match="role is 2"):
            builder.set_expert(Role.QUERY, 0, 1, rows, Source.F32)
        with pytest.raises(NativeError, match="role 6 has no place in this network"):
            builder.set_linear(Role.GATE, 0, np.zeros((160, 96), np.float32), Source.F32)
        builder.set_expert(Role.UP, 0, 2, rows, Source.F32)
        with pytest.raises(NativeError, match="expert 2 is set already"):
            builder.set_expert(Role.UP, 0, 2, rows, Source.F32)


@pytest.mark.parametrize(
    ("field", "index", "value", "problem"),
    [
        ("tokens", 0, 131, "token 0 is 131; the vocabulary has 131"),
        ("tokens", 3, -1, "token 3 is -1"),
        ("positions", 1, -5, "position 1 is -5"),
        ("slots", 2, 6 * 16, "slot 2 is 96; the pool has 96"),
        ("query_starts", 1, 9, "query_starts"),
        ("query_starts", 0, 1, "query_starts run from 1"),
        ("context_lens", 0, 3, "below its 5 new tokens"),
        ("context_lens", 0, 100, "exceeds the 32 slots"),
        ("block_tables", (0, 0), 6, "block 0 of its table is 6; the pool has 6"),
        ("block_tables", (0, 0), -1, "block 0 of its table is -1"),
        ("logit_rows", 0, 5, "logit row 0 is 5"),
    ],
)
def test_batches_that_do_not_fit_are_named(model, rig, field, index, value, problem):
    batch = rig.batch([(np.arange(5), 0, [1, 2])])
    getattr(batch, field)[index] = value
    with pytest.raises(NativeError, match=problem):
        model.step(batch)


def test_arrays_of_the_wrong_type_or_shape_are_named(model, rig):
    batch = rig.batch([(np.arange(5), 0, [1])])
    with pytest.raises(NativeError, match="slots is int64"):
        model.step(dataclasses.replace(batch, slots=batch.slots.astype(np.int64)))
    with pytest.raises(NativeError, match="positions is int32"):
        model.step(dataclasses.replace(batch, positions=batch.positions[:4]))
    with pytest.raises(NativeError, match="logits is float32"):
        model.step(batch, logits=np.empty((5, 7), np.float32))
    with pytest.raises(NativeError, match="top_k is 2000"):
        model.step(batch, top_k=2000)


def test_blocks_that_lie_apart_by_no_whole_number_are_named(library: NativeLibrary, rig, network):
    (pages,) = rig.pages(network.shape, 3)
    wide = np.zeros((3, pages.keys[0].size + 8), pages.keys.dtype)
    apart = wide[:, : pages.keys[0].size].reshape(pages.keys.shape, copy=False)
    with (
        network.native(library) as model,
        pytest.raises(NativeError, match=r"it must be .* whole blocks apart"),
    ):
        model.bind_kv([dataclasses.replace(pages, keys=apart)])
    twice = np.zeros((6, *pages.keys.shape[1:]), pages.keys.dtype)[::2]
    with network.native(library) as model, pytest.raises(NativeError, match=r"lie \[1, 2\] blocks apart"):
        model.bind_kv([dataclasses.replace(pages, keys=twice)])


def test_layers_that_do_not_fit_are_named(library: NativeLibrary, rig):
    network = rig.network(rig.shape())
    batch = rig.batch([(np.arange(5), 0, [1])])
    silent = dataclasses.replace(batch, logit_rows=batch.tokens[:0])
    between = np.zeros((5, network.shape.hidden), np.float32)
    with network.native(library) as model:
        model.bind_kv(rig.pages(network.shape, 2))
        with pytest.raises(NativeError, match="end_layer is 3; it must be 1 to 2"):
            model.step(silent, layers=SomeLayers(0, 3, between))
        with pytest.raises(NativeError, match="first_layer is 1; it must be 0 to 0"):
            model.step(silent, layers=SomeLayers(1, 1, between))
        with pytest.raises(NativeError, match="5 logit rows are wanted of a step that ends at layer 1 of 2"):
            model.step(batch, layers=SomeLayers(0, 1, between))
        with pytest.raises(NativeError, match="between is float32"):
            model.step(silent, layers=SomeLayers(0, 1, between[:4]))


def test_a_step_larger_than_the_limit_or_without_pages_is_refused(library: NativeLibrary, rig, network):
    batch = rig.batch([(np.arange(9), 0, [1])])
    with network.native(library, max_tokens=8) as model:
        with pytest.raises(NativeError, match="no KV pages bound"):
            model.step(batch)
        model.bind_kv(rig.pages(network.shape, 6))
        with pytest.raises(NativeError, match="num_tokens is 9; it must be 1 to 8"):
            model.step(batch)


def test_pages_of_another_network_are_refused(library: NativeLibrary, rig, network):
    with network.native(library) as model:
        with pytest.raises(NativeError, match="2 layers of pages for 1 layers"):
            model.bind_kv(rig.pages(rig.shape(), 2))
        with pytest.raises(NativeError, match="pages hold 3 heads"):
            model.bind_kv(rig.pages(rig.shape(num_layers=1, num_kv_heads=3), 2))


def test_a_closed_model_says_so(model, rig):
    model.close()
    with pytest.raises(NativeError, match="the model is closed"):
        model.step(rig.batch([(np.arange(5), 0, [1])]))


integers = st.integers(-3, 140)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_batches_run_or_are_refused(model, rig, data):
    """Mostly sensible batches, with a few values replaced by anything."""
    count = data.draw(st.integers(1, 4))
    lengths = [data.draw(st.tuples(st.integers(1, 20), st.integers(0, 30))) for _ in range(count)]
    tables = data.draw(
        st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=count, max_size=count)
    )
    pieces = [(np.arange(new), first, table) for (new, first), table in zip(lengths, tables, strict=True)]
    batch = rig.batch(pieces)
    for _ in range(data.draw(st.integers(0, 2))):
        array = getattr(batch, data.draw(st.sampled_from(sorted(batch.__slots__))))
        array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(integers)
    with contextlib.suppress(NativeError):
        assert model.step(batch).ids.shape == (batch.logit_rows.size, 1)
