"""Runs the cases on the `transformers` library and records its logits. Not part of the tests' environment:

    python tests/model/record_transformers.py tests/model/transformers_logits.json [case ...]

in an environment with torch, transformers and numpy.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

# That library looks for a package of the name of one of ours.
sys.modules["kernels"] = None  # type: ignore[assignment]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from architecture_cases import CASES, num_tokens, positions  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from oracles.random_weights import random_tokens, random_weights  # noqa: E402

SEED = 7


def record(name: str, folder: Path) -> dict[str, Any]:
    """One case: the tensors' shapes by the names that files have, and the logits at some positions."""
    (folder / "config.json").write_text(json.dumps(CASES[name]))
    config = AutoConfig.from_pretrained(folder)
    empty = AutoModelForCausalLM.from_config(config)
    empty.save_pretrained(folder / "empty")
    stored = load_file(folder / "empty" / "model.safetensors")
    shapes = {key: list(value.shape) for key, value in sorted(stored.items())}
    weights = random_weights(shapes, SEED)
    save_file(
        {key: torch.from_numpy(value) for key, value in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = random_tokens(CASES[name]["vocab_size"], num_tokens(name), SEED)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([tokens])).logits[0, positions(name)].float().numpy()
    assert np.isfinite(logits).all()
    return {
        "seed": SEED,
        "shapes": shapes,
        "logits": base64.b64encode(logits.astype("<f4").tobytes()).decode(),
    }


def main(path: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    found = {}
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = record(name, Path(folder))
            print(name, "recorded", flush=True)  # noqa: T201
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    path.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
