"""What a grammar costs: tokens per second of a batch with it and without, in short turns on one engine.

python -m benchmarks.constrained MODEL [--batch 8] [--rounds 12] [--threads N] [--sampling NAME ...]; with 4
rounds about a minute a sampling. The regex allows nearly everything but the end, so that it forces no token
and each step pays for a mask; the schema is an ordinary one, whose forced tokens count too. Each row draws
numbers of its own. CPU seconds are those of the whole process, which neighbours disturb less.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from appliance.catalog import ModelFile
from appliance.config import Settings
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import TokenEvent, TokenStream
from appliance.loader import load_model
from appliance.model_pool import ResidentModel
from appliance.text.constraints import CompiledGrammar
from appliance.text.grammar import json_grammar, regex_grammar

_PROMPT = "Write a long list of people, each with a name, a town and what they like to do. "
_TOKENS = 48
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "town": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "town", "age"],
    "additionalProperties": False,
}
_SCHEMA = {"type": "array", "items": _PERSON, "minItems": 30}
_REGEX = r"(?s:.*)\x01"  # an end that no answer comes to
_SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "top-k 40, top-p 0.9": SamplingParams(temperature=0.8, top_k=40, top_p=0.9),
    "whole vocabulary": SamplingParams(temperature=1.0),
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "penalties": SamplingParams(temperature=0.8, presence_penalty=0.5, frequency_penalty=0.2),
}


def run_turn(
    model: ResidentModel, params: SamplingParams, batch: int, grammar: CompiledGrammar | None
) -> tuple[float, float]:
    """Seconds of wall and CPU time for each output token, prompts left out."""
    ids = model.tokenizer.encode(_PROMPT, parse_special=False)
    constraints = [grammar.start() if grammar else None for _ in range(batch)]
    wanted = [replace(params, max_tokens=_TOKENS, seed=row) for row in range(batch)]
    streams = [
        model.engine.submit(ids, own, constraint=one) for own, one in zip(wanted, constraints, strict=True)
    ]
    for stream in streams:
        next(iter(stream))
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    num_tokens = sum(_drain(stream) for stream in streams)
    assert num_tokens >= batch * (_TOKENS - 8), "an answer ended early: its turn is no measure"
    return (time.perf_counter() - started_s) / num_tokens, (time.process_time() - started_cpu_s) / num_tokens


def _drain(stream: TokenStream) -> int:
    return sum(len(event.token_ids) for event in stream if isinstance(event, TokenEvent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sampling", nargs="*", choices=_SAMPLING, default=list(_SAMPLING))
    args = parser.parse_args()
    settings = replace(Settings(), threads=args.threads or None, context=2048)
    model = load_model(settings, ModelFile(model_id="m", path=args.model), lambda _text, _share: None)
    grammars = {
        "free": None,
        "regex": model.constraints.compile(regex_grammar(_REGEX, field="regex")),
        "schema": model.constraints.compile(json_grammar(_SCHEMA, field="schema")),
    }
    for name in args.sampling:
        params = _SAMPLING[name]
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in grammars}
        for number in range(args.rounds + 1):
            for kind in grammars if number % 2 else reversed(grammars):
                turn = run_turn(model, params, args.batch, grammars[kind])
                if number:  # the first warms up
                    found[kind].append(turn)
        print(f"{name}, batch {args.batch}, medians of {args.rounds} turns of {_TOKENS} tokens")
        for kind, turns in found.items():
            wall, cpu = (statistics.median(column) for column in zip(*turns, strict=True))
            base_wall, base_cpu = (statistics.median(column) for column in zip(*found["free"], strict=True))
            ratios = [free[0] / own[0] for free, own in zip(found["free"], turns, strict=True)]
            pairs = f"pairs {min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"
            speed = f"{1 / wall:7.0f} tok/s ({base_wall / wall - 1:+.1%}; {pairs})"
            print(f"  {kind:7} {speed}, CPU {1e6 * cpu:5.0f} us a token ({cpu / base_cpu - 1:+.1%})")
    model.close()


if __name__ == "__main__":
    main()
