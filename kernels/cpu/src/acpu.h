/* The library's C interface. Plain types only; every call checks what it is given and returns a status. */
#ifndef ACPU_H
#define ACPU_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ACPU_API __declspec(dllexport)
#else
#define ACPU_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ACPU_ABI_VERSION 5

enum { ACPU_OK = 0, ACPU_BAD_ARGUMENT = 1, ACPU_UNSUPPORTED = 2, ACPU_OUT_OF_MEMORY = 3 };

/* Where a matrix or vector sits in the network. Layer roles need a layer; the others take layer 0. */
enum {
  ACPU_EMBEDDING = 0,
  ACPU_HEAD = 1,
  ACPU_QUERY = 2,
  ACPU_KEY = 3,
  ACPU_VALUE = 4,
  ACPU_OUTPUT = 5,
  ACPU_GATE = 6,
  ACPU_UP = 7,
  ACPU_DOWN = 8,
  ACPU_ROUTER = 9,
  ACPU_NUM_LINEARS = 10
};
enum {
  ACPU_FINAL_NORM = 0,
  ACPU_ATTENTION_PRE_NORM = 1,
  ACPU_ATTENTION_POST_NORM = 2,
  ACPU_FFN_PRE_NORM = 3,
  ACPU_FFN_POST_NORM = 4,
  ACPU_QUERY_NORM = 5,
  ACPU_KEY_NORM = 6,
  ACPU_NUM_NORMS = 7
};

/* Activations of 8 bits, and of 12 in the four of each 32 that stand out. */
enum { ACPU_MIXED_BITS = 0 };

/* How rows given for packing are stored. */
enum {
  ACPU_SOURCE_F32 = 0,
  ACPU_SOURCE_F16 = 1,
  ACPU_SOURCE_BF16 = 2,
  ACPU_SOURCE_Q4_0 = 3,
  ACPU_SOURCE_Q4_1 = 4,
  ACPU_SOURCE_Q8_0 = 5,
  ACPU_SOURCE_AFFINE = 6,
  ACPU_NUM_SOURCES = 7
};

typedef struct {
  const double* frequencies; /* [rotary_size / 2], radians per position */
  int32_t rotary_size;
  float attention_factor;
} acpu_rope;

typedef struct {
  int32_t struct_bytes;
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_size, vocab_size;
  int32_t max_tokens; /* of one step */
  int32_t activation, norm_placement, qk_norm;
  int32_t num_experts, num_active_experts, expert_size, normalizes_experts; /* num_experts 0: none */
  float norm_eps, attention_scale, attention_softcap, logit_softcap, logit_scale, residual_scale,
      embedding_scale;
  int32_t num_ropes, num_threads, spin_us;
  int32_t activation_bits; /* 8; 12: nearly a float32 product; or ACPU_MIXED_BITS */
  int32_t is_rough; /* 1: prompts in bfloat16 on levels with tiles; on others 12 bits are mixed ones */
  const acpu_rope* ropes;
  const int32_t* rope_of_layer; /* [num_layers], -1: none */
  const int32_t* windows;       /* [num_layers], 0: none */
  const char* level;            /* null or "": the best of this machine */
} acpu_config;

/* One matrix to pack: [num_outputs, num_inputs] of `source`, to `kind`. */
typedef struct {
  int32_t struct_bytes;
  int32_t source, kind, num_outputs, num_inputs;
  int32_t reserved;
  const void* rows;
  size_t rows_bytes;
  const float* scales;  /* affine only: [num_outputs, num_inputs / 32] */
  const float* minima;  /* affine only */
  const int32_t* order; /* null, or [num_outputs]: channel i is row order[i] */
  const float* bias;    /* null, or [num_outputs], already in channel order */
} acpu_matrix;

typedef struct {
  int32_t struct_bytes;
  int32_t num_blocks, block_size, num_kv_heads, head_size, is_int8;
  int32_t block_stride; /* blocks from one to the next: 1, or more where those of other layers lie between */
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
} acpu_kv_layer;

typedef struct {
  int32_t struct_bytes;
  int32_t num_tokens, num_sequences, max_blocks, num_logit_rows, top_k;
  int32_t first_layer, end_layer; /* those this call runs; 0 and 0: all */
  const int32_t* tokens;       /* [num_tokens] */
  const int32_t* positions;    /* [num_tokens] */
  const int32_t* slots;        /* [num_tokens] */
  const int32_t* query_starts; /* [num_sequences + 1] */
  const int32_t* context_lens; /* [num_sequences], new tokens included */
  const int32_t* prompt_lens;  /* null, or [num_sequences]: tokens at positions below are of a prompt */
  const int32_t* block_tables; /* [num_sequences, max_blocks] */
  const int32_t* logit_rows;   /* [num_logit_rows] */
  float* logits;               /* null, or [num_logit_rows, vocab_size] */
  float* hidden;               /* null, or [num_logit_rows, hidden_size], after the final norm */
  int32_t* top_ids;            /* [num_logit_rows, top_k], best first; null where top_k is 0 */
  float* top_values;           /* the same shape */
  float* between;              /* [num_tokens, hidden_size]: read where the first layer is not 0, written where
                                  the end is not the last, and then there are no logit rows; else null */
} acpu_step;

/* How one row's token is chosen; the cuts in this order: top_k, top_p, min_p. */
typedef struct {
  const float* logits;  /* [size] */
  const uint32_t* mask; /* null, or a bit for each allowed token, the first in the lowest */
  double number;        /* from [0, 1): where in the running total of the weights, in the tokens' order */
  double top_p, min_p;  /* 1 and 0: none */
  float temperature;    /* 0: the likeliest token, whatever else is said */
  int32_t top_k;        /* 0: none */
  int32_t size, num_mask_words;
} acpu_choice;

typedef struct acpu_model acpu_model;
typedef struct acpu_linear acpu_linear;

ACPU_API int32_t acpu_abi_version(void);
ACPU_API const char* acpu_last_error(void); /* of this thread; valid until its next call */
ACPU_API const char* acpu_levels(void);     /* those this machine runs, best first, separated by spaces */

ACPU_API int32_t acpu_model_create(const acpu_config* config, acpu_model** model);
ACPU_API int32_t acpu_model_set_linear(acpu_model* model, int32_t role, int32_t layer,
                                       const acpu_matrix* matrix);
/* `role` is ACPU_GATE, ACPU_UP or ACPU_DOWN. */
ACPU_API int32_t acpu_model_set_expert(acpu_model* model, int32_t role, int32_t layer, int32_t expert,
                                       const acpu_matrix* matrix);
ACPU_API int32_t acpu_model_set_norm(acpu_model* model, int32_t role, int32_t layer, const float* weight,
                                     int32_t size);
ACPU_API int32_t acpu_model_finish(acpu_model* model);
ACPU_API int32_t acpu_model_bind_kv(acpu_model* model, const acpu_kv_layer* layers, int32_t num_layers);
ACPU_API int32_t acpu_model_step(acpu_model* model, const acpu_step* step);
/* A token of each row, on the calling thread; -1 where there is no finite number to choose by. */
ACPU_API int32_t acpu_model_choose(acpu_model* model, const acpu_choice* rows, int32_t choice_bytes,
                                   int32_t num_rows, int32_t* tokens);
ACPU_API int32_t acpu_model_weight_bytes(const acpu_model* model, int64_t* bytes);
ACPU_API int32_t acpu_model_phase_seconds(acpu_model* model, double* seconds,
                                          int32_t size); /* reads and clears */
ACPU_API const char* acpu_model_level(const acpu_model* model);
ACPU_API void acpu_model_destroy(acpu_model* model);

/* Single operations, for parity tests. All float32, one thread, on the named level. */
ACPU_API int32_t acpu_linear_create(const acpu_matrix* matrix, acpu_linear** linear);
ACPU_API int32_t acpu_linear_run(const acpu_linear* linear, const char* level, const float* x, float* out,
                                 int32_t rows,
                                 int32_t activation_bits);
ACPU_API int32_t acpu_linear_row(const acpu_linear* linear, int32_t row, float* out);
ACPU_API void acpu_linear_destroy(acpu_linear* linear);
ACPU_API int32_t acpu_rms_norm(const char* level, const float* x, const float* weight, float* out,
                               int32_t rows, int32_t size, float eps);
ACPU_API int32_t acpu_gated(const char* level, int32_t activation, const float* gate, const float* up,
                            float* out, int32_t size);
ACPU_API int32_t acpu_top_k(const char* level, const float* logits, int32_t size, int32_t k, int32_t* ids,
                            float* values);

typedef struct {
  int32_t struct_bytes;
  int32_t num_tokens, num_heads, rotary_size, window, first_position, max_blocks, by_split;
  float scale, softcap, eps;
  const float* q; /* [num_tokens, num_heads, head_size] */
  const float* k; /* [num_tokens, num_kv_heads, head_size]; null: pages already hold them */
  const float* v;
  const float* q_norm; /* [head_size] or null */
  const float* k_norm;
  const float* cos; /* [num_tokens, rotary_size / 2] */
  const float* sin;
  const int32_t* blocks; /* [max_blocks] of the one sequence */
  float* out;            /* [num_tokens, num_heads, head_size] */
} acpu_attention;

ACPU_API int32_t acpu_attend(const char* level, const acpu_kv_layer* kv, const acpu_attention* call);
ACPU_API int32_t acpu_kv_read(const acpu_kv_layer* kv, const int32_t* blocks, int32_t max_blocks,
                              int32_t num_slots, float* keys,
                              float* values); /* [num_slots, kv_heads, head_size] */

#ifdef __cplusplus
}
#endif
#endif
