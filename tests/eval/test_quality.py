"""The record of what quantization cost: kept per file, judged per kind of text."""

import os
from pathlib import Path

import msgspec
import pytest

from appliance.quality import (
    DomainQuality,
    Quality,
    quality_file,
    read_all,
    read_quality,
    save_quality,
    variant_of,
)

GOOD = DomainQuality(
    num_tokens=100,
    perplexity=10.05,
    reference_perplexity=10.0,
    mean_kl=0.003,
    p99_kl=0.02,
    top1_agreement=0.97,
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "a b.gguf"
    file.write_bytes(b"weights")
    return file


def quality(variant: str = "int8", **changes: object) -> Quality:
    plain = Quality(
        model="tiny",
        variant=variant,
        held_as="int8",
        activations="auto",
        backend="cpu",
        kv_dtype="bf16",
        against="bf16",
        weights_bytes=60,
        reference_bytes=100,
        overall=GOOD,
        domains={"prose": GOOD, "code": GOOD, "arithmetic": GOOD},
        num_prompts=4,
        num_loops=2,
        reference_loops=2,
        measured_s=1.0,
    )
    return msgspec.structs.replace(plain, **changes)


def test_a_record_is_read_back_as_it_was_kept(model: Path) -> None:
    save_quality(model, quality())
    assert read_quality(model, "int8") == quality()
    assert read_quality(model, "int4") is None


def test_a_changed_file_has_no_record(model: Path) -> None:
    save_quality(model, quality())
    os.utime(model, (1, 1))
    assert read_quality(model, "int8") is None


def test_a_spoilt_record_is_none(model: Path) -> None:
    save_quality(model, quality())
    quality_file(model, "int8").write_text("{")
    assert read_quality(model, "int8") is None


def test_every_variant_of_a_file_is_found(model: Path) -> None:
    for variant in ("int8", "int8-mixed", variant_of("int8", kv_dtype="int8")):
        save_quality(model, quality(variant))
    assert set(read_all(model)) == {"int8", "int8-mixed", "int8+kv-int8"}


def test_what_is_within_every_bound_passes() -> None:
    assert quality().failures == ()


def test_one_kind_of_text_fails_where_the_whole_passes() -> None:
    poor = msgspec.structs.replace(GOOD, perplexity=10.4)
    failures = quality(domains={"prose": GOOD, "code": GOOD, "arithmetic": poor}).failures
    assert failures == ("arithmetic: perplexity +4.0%, bound +3%",)


def test_a_perplexity_that_is_not_a_number_fails() -> None:
    broken = msgspec.structs.replace(GOOD, perplexity=float("nan"))
    assert quality(domains={"prose": broken}).failures


def test_many_more_loops_than_the_reference_fail_and_one_more_does_not() -> None:
    assert quality(num_loops=3).failures == ()
    assert quality(num_loops=4).failures == ("4 answers loop, 2 as bf16",)
