// The vector part of choosing a token of one row: the largest logit, weights, and which of them are large.
// A mask has a bit for each token, the first in the lowest; without one every token is allowed.
#pragma once

namespace {

using acpu::TokenMask;

constexpr int kWordTokens = 32;

static inline uint32_t mask_word(const TokenMask& mask, int word, int size) {
  const uint32_t bits = !mask.words ? ~0u : word < mask.num_words ? mask.words[word] : 0u;
  const int count = size - word * kWordTokens;
  return count >= kWordTokens ? bits : bits & ((1u << count) - 1u);
}

// A word's logits; the last ones, where fewer than 32, in `room`, minus infinity behind them.
static inline const float* word_logits(const float* x, int word, int size, float* room) {
  const int first = word * kWordTokens;
  if (size - first >= kWordTokens) return x + first;
  for (int i = 0; i < kWordTokens; ++i) room[i] = first + i < size ? x[first + i] : -__builtin_inff();
  return room;
}

static inline vf kept(vf v, float fill, uint32_t bits, int at) {
  return bits == ~0u ? v : keep_bits(v, fill, bits >> at);
}

// The largest allowed logit and the first place that has it: -1 where nothing is allowed, or no number.
static float peak(const float* x, const TokenMask& mask, int size, int32_t* place) {
  const float none = -__builtin_inff();
  const int words = (size + kWordTokens - 1) / kWordTokens;
  float room[kWordTokens];
  vf best[kWordTokens / W]; // one alone would wait for itself
  for (vf& lanes : best) lanes = set(none);
  for (int word = 0; word < words; ++word) {
    const uint32_t bits = mask_word(mask, word, size);
    if (!bits) continue;
    const float* from = word_logits(x, word, size, room);
    ACPU_UNROLL
    for (int i = 0; i < kWordTokens; i += W)
      best[i / W] = vmax(kept(load(from + i), none, bits, i), best[i / W]);
  }
  for (const vf& lanes : best) best[0] = vmax(lanes, best[0]);
  const float top = max_of(best[0]);
  *place = -1;
  for (int word = 0; word < words && *place < 0; ++word) {
    const uint32_t bits = mask_word(mask, word, size);
    if (!bits) continue;
    const float* from = word_logits(x, word, size, room);
    for (int i = 0; i < kWordTokens && *place < 0; i += W) {
      uint32_t hits = ~greater_bits(set(top), load(from + i)) & ((1u << W) - 1u) & (bits >> i);
      for (; hits && *place < 0; hits &= hits - 1u) {
        const int at = i + __builtin_ctz(hits);
        if (from[at] == top) *place = word * kWordTokens + at; // else it is no number
      }
    }
  }
  return top;
}

// The logits, minus infinity where blocked, in whole words.
static void keep_allowed(const float* x, const TokenMask& mask, int size, float* out) {
  const int words = (size + kWordTokens - 1) / kWordTokens;
  float room[kWordTokens];
  for (int word = 0; word < words; ++word) {
    const uint32_t bits = mask_word(mask, word, size);
    const float* from = word_logits(x, word, size, room);
    float* to = out + word * kWordTokens;
    for (int i = 0; i < kWordTokens; i += W)
      store(to + i, kept(load(from + i), -__builtin_inff(), bits, i));
  }
}

// weights = exp((x - top) * scale), 0 where blocked, in whole words; and the total of every 8 words.
static void weigh(const float* x, const TokenMask& mask, int size, float top, float scale, float* weights,
                  float* totals) {
  const int words = (size + kWordTokens - 1) / kWordTokens;
  float room[kWordTokens];
  for (int first = 0; first < words; first += acpu::kTotalWords) {
    vf total = zero();
    for (int word = first; word < least(words, first + acpu::kTotalWords); ++word) {
      const uint32_t bits = mask_word(mask, word, size);
      const float* from = word_logits(x, word, size, room);
      float* to = weights + word * kWordTokens;
      for (int i = 0; i < kWordTokens; i += W) {
        vf v = zero();
        if (bits) v = kept(vexp(mul(sub(load(from + i), set(top)), set(scale))), 0.0f, bits, i);
        store(to + i, v);
        total = add(total, v);
      }
    }
    totals[first / acpu::kTotalWords] = sum(total);
  }
}

// The places of the weights that are at least `floor`, which is above 0, in order. Returns how many.
static int at_least(const float* weights, int size, float floor, int32_t* places) {
  const int words = (size + kWordTokens - 1) / kWordTokens;
  const vf limit = set(floor);
  int count = 0;
  for (int i = 0; i < words * kWordTokens; i += W) {
    uint32_t bits = ~greater_bits(limit, load(weights + i)) & ((1u << W) - 1u);
    for (; bits; bits &= bits - 1u) places[count++] = i + __builtin_ctz(bits);
  }
  return count;
}

} // namespace
