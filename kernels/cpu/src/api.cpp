// The border: handles, and nothing thrown across it.
#include "acpu.h"
#include "failure.h"
#include "model.h"

struct acpu_model : acpu::Model {
  using acpu::Model::Model;
};

using acpu::guarded;
using acpu::require_pointer;

extern "C" {

int32_t acpu_abi_version(void) {
  return ACPU_ABI_VERSION;
}

int32_t acpu_model_create(const acpu_config* config, acpu_model** model) {
  return guarded([&] {
    require_pointer(model, "model");
    *model = nullptr;
    acpu::require_struct(config, "config");
    *model = new acpu_model(*config);
  });
}

int32_t acpu_model_set_linear(acpu_model* model, int32_t role, int32_t layer, const acpu_matrix* matrix) {
  return guarded([&] {
    require_pointer(model, "model");
    acpu::require_struct(matrix, "matrix");
    model->set_linear(role, layer, *matrix);
  });
}

int32_t acpu_model_set_expert(acpu_model* model, int32_t role, int32_t layer, int32_t expert,
                              const acpu_matrix* matrix) {
  return guarded([&] {
    require_pointer(model, "model");
    acpu::require_struct(matrix, "matrix");
    model->set_expert(role, layer, expert, *matrix);
  });
}

int32_t acpu_model_set_norm(acpu_model* model, int32_t role, int32_t layer, const float* weight,
                            int32_t size) {
  return guarded([&] {
    require_pointer(model, "model");
    model->set_norm(role, layer, weight, size);
  });
}

int32_t acpu_model_finish(acpu_model* model) {
  return guarded([&] {
    require_pointer(model, "model");
    model->finish();
  });
}

int32_t acpu_model_bind_kv(acpu_model* model, const acpu_kv_layer* layers, int32_t num_layers) {
  return guarded([&] {
    require_pointer(model, "model");
    model->bind_kv(layers, num_layers);
  });
}

int32_t acpu_model_step(acpu_model* model, const acpu_step* step) {
  return guarded([&] {
    require_pointer(model, "model");
    require_pointer(step, "step");
    acpu::run_step(*model, *step);
  });
}

int32_t acpu_model_choose(acpu_model* model, const acpu_choice* rows, int32_t choice_bytes, int32_t num_rows,
                          int32_t* tokens) {
  return guarded([&] {
    require_pointer(model, "model");
    require_pointer(rows, "rows");
    require_pointer(tokens, "tokens");
    acpu::require_range("choice_bytes", choice_bytes, sizeof(acpu_choice), sizeof(acpu_choice));
    acpu::require_range("num_rows", num_rows, 1, 1 << 20);
    acpu::choose(*model, rows, num_rows, tokens);
  });
}

int32_t acpu_model_weight_bytes(const acpu_model* model, int64_t* bytes) {
  return guarded([&] {
    require_pointer(model, "model");
    require_pointer(bytes, "bytes");
    *bytes = static_cast<int64_t>(model->arena.used_bytes());
  });
}

int32_t acpu_model_phase_seconds(acpu_model* model, double* seconds, int32_t size) {
  return guarded([&] {
    require_pointer(model, "model");
    require_pointer(seconds, "seconds");
    acpu::require_range("size", size, 0, static_cast<int64_t>(model->phase_seconds.size()));
    std::lock_guard<std::mutex> lock(model->step_mutex);
    for (int i = 0; i < size; ++i) seconds[i] = model->phase_seconds[i];
    for (double& phase : model->phase_seconds) phase = 0.0;
  });
}

const char* acpu_model_level(const acpu_model* model) {
  return model ? model->level->name : "";
}

void acpu_model_destroy(acpu_model* model) {
  delete model;
}

} // extern "C"
