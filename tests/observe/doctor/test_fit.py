"""What the doctor says of memory is what a start would say, word for word."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from appliance.catalog import ModelFile
from appliance.config import MemoryAmount, Settings
from appliance.errors import NotEnoughMemory
from appliance.loader import load_model
from appliance.memory_forecast import Forecast, forecast
from appliance.observe.doctor.finding import Status
from appliance.observe.doctor.fit import check_fit
from tests.formats.gguf_builder import write_tiny_llama

SETTINGS = Settings(device="cpu", backend="cpu", max_sequences=2, threads=1)


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return ModelFile(model_id="tiny", path=write_tiny_llama(tmp_path / "tiny.gguf", type_name="Q8_0"))


def test_a_pool_too_small_is_told_as_a_start_tells_it(model: ModelFile) -> None:
    small = replace(SETTINGS, kv_memory=MemoryAmount(num_bytes=100))
    with pytest.raises(NotEnoughMemory) as caught:
        load_model(small, model, lambda *_: None)
    (finding,) = check_fit("tiny", lambda _: model, partial(forecast, small))
    assert finding.status == Status.FAIL
    assert f"{finding.summary}; {finding.remedy}" == caught.value.message
    assert finding.remedy == "raise --kv-memory to 1MiB"
    mended = replace(SETTINGS, kv_memory=MemoryAmount.parse("1MiB"))
    assert check_fit("tiny", lambda _: model, partial(forecast, mended))[0].status == Status.PASS


def test_a_context_past_the_model_is_told_before_a_start(model: ModelFile) -> None:
    long = replace(SETTINGS, context=100_000)
    (finding,) = check_fit("tiny", lambda _: model, partial(forecast, long))
    assert finding.status == Status.FAIL
    assert finding.summary.startswith("--context is 100000 and this model was made for at most")


def test_what_fits_is_told_with_its_sizes_as_the_load_has_them(model: ModelFile) -> None:
    (finding,) = check_fit("tiny", lambda _: model, partial(forecast, SETTINGS))
    assert finding.status == Status.PASS
    resident = load_model(SETTINGS, model, lambda *_: None)
    resident.close()
    assert f"{resident.facts.precision} weights of " in finding.summary
    num_tokens = 2 * -(-resident.facts.context_length // 32) * 32
    assert f"in {resident.facts.kv_dtype}, {num_tokens} tokens, fit" in finding.summary


def test_a_warning_is_one_and_has_its_remedy(model: ModelFile) -> None:
    told = Forecast(summary="", warning="the pool holds 9 tokens; --context 9 fits one sequence")
    (finding,) = check_fit("tiny", lambda _: model, lambda _: told)
    assert (finding.status, finding.remedy) == (Status.WARN, "--context 9 fits one sequence")


def test_a_backend_that_cannot_run_it_is_told_as_a_start_tells_it(model: ModelFile) -> None:
    odd = replace(SETTINGS, kv_dtype="f32")
    (finding,) = check_fit("tiny", lambda _: model, partial(forecast, odd))
    assert finding.status == Status.FAIL
    assert finding.summary == "--backend cpu cannot run this: its KV cache is bf16 or int8, not f32"


def test_what_is_not_foreseen_has_no_line(model: ModelFile) -> None:
    assert check_fit("tiny", lambda _: model, lambda _: None) == []
    assert forecast(replace(SETTINGS, backend="eager"), model) is None
