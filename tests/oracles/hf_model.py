"""A recorded case as a Hugging Face folder, opened and loaded through the real loaders."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from appliance.formats.hf_folder import read_hf_folder
from appliance.runtime.backend import EagerBackend, eager_kv_layout
from appliance.runtime.checkpoint import ModelFile, read_config
from appliance.runtime.weights import WeightLoader
from formats.safetensors_builder import write_hf_folder
from kernels.tables import reference_ops
from model.architecture_cases import CASES, SERVED_CONTEXT_OF, num_tokens, positions
from oracles.random_weights import random_tokens, random_weights

CPU = torch.device("cpu")
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "model" / "transformers_logits.json").read_text()
)


@dataclass(frozen=True, kw_only=True)
class RecordedModel:
    """A case, its weights and tokens, and the logits that another implementation gives at `positions`."""

    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    tokens: list[int]
    positions: list[int]
    logits: np.ndarray  # (positions, V)
    served_context: int | None

    def write(self, path: Path) -> Path:
        return write_hf_folder(path, self.config, self.weights)


def recorded_model(name: str, recorded: dict[str, Any] | None = None) -> RecordedModel:
    found = recorded or RECORDED[name]
    logits = np.frombuffer(base64.b64decode(found["logits"]), "<f4").reshape(len(positions(name)), -1)
    return RecordedModel(
        config=CASES[name],
        weights=random_weights(found["shapes"], found["seed"]),
        tokens=random_tokens(CASES[name]["vocab_size"], num_tokens(name), found["seed"]),
        positions=positions(name),
        logits=logits,
        served_context=SERVED_CONTEXT_OF.get(name),
    )


def eager_backend(file: ModelFile, served_context: int | None = None) -> EagerBackend:
    """Load an open file in float32, with a KV pool of 64 blocks."""
    architecture, config = read_config(file, served_context)
    weights = WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)
    backend = EagerBackend(config, weights, reference_ops(), eager_kv_layout(config, torch.float32))
    backend.attach_kv(64)
    return backend


def eager_from_folder(path: Path, served_context: int | None = None) -> EagerBackend:
    with read_hf_folder(path) as folder:
        return eager_backend(folder, served_context)
