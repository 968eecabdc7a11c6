"""What the GPU kernels could do at best, from bytes and operations alone: `python -m benchmarks.roofline`.

Rewrites the part of docs/performance.md between its own markers. Nothing here is measured.
"""

from dataclasses import dataclass
from pathlib import Path

from kernels import work
from kernels.work import Work

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- roofline: begin -->\n", "<!-- roofline: end -->\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU by its maker's data sheet: dense rates, 16-bit with float32 sums."""

    name: str
    bytes_per_s: float
    operations_per_s: float
    int8_operations_per_s: float

    def seconds(self, one: Work) -> float:
        """Return the longer of moving the bytes and computing: both at the data sheet's peak, overlapped."""
        compute = one.operations / self.operations_per_s + one.int8_operations / self.int8_operations_per_s
        return max(one.num_bytes / self.bytes_per_s, compute)


CARDS = (
    Card(name="RTX 4090", bytes_per_s=1.008e12, operations_per_s=165e12, int8_operations_per_s=661e12),
    Card(name="A100 80 GB", bytes_per_s=2.039e12, operations_per_s=312e12, int8_operations_per_s=624e12),
    Card(name="H200", bytes_per_s=4.8e12, operations_per_s=989e12, int8_operations_per_s=1979e12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama of 8 billion parameters."""

    layers: int = 32
    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    vocab: int = 128_256

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of each layer's products: QKV, output, gate and up, down."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_size
        attended = self.heads * self.head_size
        return (
            (self.hidden, qkv),
            (attended, self.hidden),
            (self.hidden, 2 * self.inner),
            (self.inner, self.hidden),
        )


SHAPE = Shape()


def layer_products(T: int, weight: str, *, quantizes: bool) -> list[Work]:
    if not quantizes:
        return [work.linear(T, num_in, num_out, weight) for num_in, num_out in SHAPE.matrices]
    return [
        work.quantize_tokens(T, num_in) + work.linear_int8_tokens(T, num_in, num_out)
        for num_in, num_out in SHAPE.matrices
    ]


def step(attention: Work, T: int, R: int, weight: str, kv: str, *, quantizes: bool = False) -> list[Work]:
    """Return each kernel's work in one step, T new tokens and R rows of logits."""
    s = SHAPE
    layer = [
        work.add_rms_norm(T, s.hidden).times(2),
        work.rope_write_kv(T, s.heads, s.kv_heads, s.head_size, kv),
        attention,
        work.gated(T, s.inner),
        *layer_products(T, weight, quantizes=quantizes),
    ]
    head = [work.select_rows(R, s.hidden), work.linear(R, s.hidden, s.vocab, "bf16")]
    return [one.times(s.layers) for one in layer] + head


def decode_seconds(card: Card, S: int, context: int, weight: str, kv: str) -> float:
    attention = work.attention_decode(S, context, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_size, kv)
    return sum(map(card.seconds, step(attention, S, S, weight, kv)))


def prefill_seconds(card: Card, T: int, weight: str, kv: str) -> float:
    attention = work.attention_prefill(T, T, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_size, kv)
    return sum(map(card.seconds, step(attention, T, 1, weight, kv, quantizes=weight == "int8")))


def kernel_rows() -> list[tuple[str, Work]]:
    s = SHAPE
    heads = (s.heads, s.kv_heads, s.head_size)
    return [
        ("attention, 1 sequence, context 4096", work.attention_decode(1, 4096, *heads, "bf16")),
        ("attention, 64 sequences, context 4096", work.attention_decode(64, 4096, *heads, "bf16")),
        ("attention, 64 sequences, context 4096, INT8 KV", work.attention_decode(64, 4096, *heads, "int8")),
        ("attention, prompt of 4096", work.attention_prefill(4096, 4096, *heads, "bf16")),
        ("attention, prompt of 16384", work.attention_prefill(16384, 16384, *heads, "bf16")),
        ("attention's reduce, 1 sequence, 16 splits", work.attention_reduce(1, 16, s.heads, s.head_size)),
        ("linear, 1 token, 4096 to 28672, bf16", work.linear(1, 4096, 28672, "bf16")),
        ("linear_int8, 1 token, 4096 to 28672", work.linear(1, 4096, 28672, "int8")),
        ("linear_int8, 32 tokens, 4096 to 28672", work.linear(32, 4096, 28672, "int8")),
        ("linear_int4, 1 token, 4096 to 28672", work.linear(1, 4096, 28672, "int4")),
        ("linear_int4, 32 tokens, 4096 to 28672", work.linear(32, 4096, 28672, "int4")),
        ("linear_int8_tokens, 4096 tokens, 4096 to 28672", work.linear_int8_tokens(4096, 4096, 28672)),
        ("quantize_tokens, 4096 tokens of 4096", work.quantize_tokens(4096, 4096)),
        ("quantize_tokens by one scale, 4096 tokens of 4096", work.quantize_tokens(4096, 4096)),
        ("rope, 4096 tokens", work.rope(4096, s.heads, s.head_size)),
        ("write_kv, 4096 tokens", work.write_kv(4096, s.kv_heads, s.head_size, "bf16")),
        ("write_kv, 4096 tokens, INT8 KV", work.write_kv(4096, s.kv_heads, s.head_size, "int8")),
        ("rope_write_kv, 4096 tokens", work.rope_write_kv(4096, *heads, "bf16")),
        ("rope_write_kv, 4096 tokens, INT8 KV", work.rope_write_kv(4096, *heads, "int8")),
        ("rms_norm, 4096 tokens of 4096", work.rms_norm(4096, 4096)),
        ("add_rms_norm, 4096 tokens of 4096", work.add_rms_norm(4096, 4096)),
        ("gated_silu or gated_gelu, 4096 tokens of 14336", work.gated(4096, 14336)),
        ("embed, 4096 tokens of 4096", work.embed(4096, 4096)),
        ("select_rows, 64 of 4096", work.select_rows(64, 4096)),
        ("copy_blocks, one page of 16 tokens", work.copy_blocks(1, 16, s.kv_heads, s.head_size, "bf16")),
    ]


def report() -> str:
    lines = ["| kernel | MB | Gop | " + " | ".join(f"{card.name}, µs" for card in CARDS) + " |"]
    lines.append("| --- | --- | --- |" + " --- |" * len(CARDS))
    for name, one in kernel_rows():
        operations = (one.operations + one.int8_operations) / 1e9
        times = " | ".join(f"{card.seconds(one) * 1e6:,.2f}" for card in CARDS)
        lines.append(f"| {name} | {one.num_bytes / 1e6:,.2f} | {operations:,.2f} | {times} |")
    lines += ["", "| step of an 8B Llama | " + " | ".join(card.name for card in CARDS) + " |"]
    lines.append("| --- |" + " --- |" * len(CARDS))
    for weight in work.WEIGHT_BYTES:
        for S, context in ((1, 512), (1, 4096), (8, 4096), (64, 512), (64, 4096)):
            times = " | ".join(
                f"{decode_seconds(c, S, context, weight, 'bf16') * 1e3:,.2f} ms" for c in CARDS
            )
            lines.append(f"| decode, {weight}, batch {S}, context {context} | {times} |")
        for T in (512, 4096):
            rates = " | ".join(f"{T / prefill_seconds(c, T, weight, 'bf16'):,.0f} tok/s" for c in CARDS)
            lines.append(f"| prefill of {T}, {weight} | {rates} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite the document's part."""
    text = DOCUMENT.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(before + BEGIN + report() + END + after, "utf-8")


if __name__ == "__main__":
    main()
