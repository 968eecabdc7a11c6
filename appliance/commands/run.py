"""`appliance run`: one prompt and its answer without a server, or a chat, with a running one if there is."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from appliance.commands.settings_args import settings_file_of, settings_from
from appliance.engine.sequence import FinishReason, SamplingParams
from appliance.engine.stream import FinishEvent, TokenEvent
from appliance.errors import BadSetting, GenerationFailed, UnknownModel
from appliance.logs import configure_logs
from appliance.model_overrides import ModelOverrides
from appliance.model_pool import ALL_ROOM, ResidentModel
from appliance.text.detokenizer import Detokenizer


def run(args: argparse.Namespace) -> int:
    """Answer one prompt, or chat. Raises what loading raises, GenerationFailed, or Refused."""
    if args.prompt is None:
        return _chat(args)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    params = _params(args)
    model = _load(args)
    try:
        system = args.system or model.defaults.system
        return _answer(model, _encode(model, prompt, system, is_raw=args.raw), params)
    finally:
        model.close()


def _chat(args: argparse.Namespace) -> int:
    from appliance.commands.chat import Chat, Speaker
    from appliance.commands.running_appliance import NotRunning, appliance_at

    if args.raw:
        raise BadSetting("--raw needs a prompt; a chat always has its template", param="raw")
    params = _params(args)

    def chat_with(speaker: Speaker, system: str | None = None) -> int:
        return Chat(speaker, system=args.system or system, is_terminal=sys.stdin.isatty()).run()

    with appliance_at(args) as appliance:
        try:
            appliance.require_model(args.model)
        except (NotRunning, UnknownModel):
            if args.url:
                raise
        else:
            options = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
            return chat_with(lambda messages: appliance.chat(args.model, messages, options))
    model = _load(args)
    try:
        return chat_with(lambda messages: _spoken(model, messages, params), model.defaults.system)
    finally:
        model.close()


def _spoken(
    model: ResidentModel, messages: Sequence[Mapping[str, str]], params: SamplingParams
) -> Iterator[str]:
    """The pieces of one answer within a chat. Raises BadSetting, GenerationFailed."""
    if model.chat_template is None:
        raise BadSetting(f"'{model.model_id}' has no chat template; give a prompt, which it goes on from")
    prompt_ids = model.chat_template.encode(model.tokenizer, list(messages))
    with model.engine.submit(
        prompt_ids, replace(params, stop_token_ids=model.tokenizer.stop_token_ids)
    ) as stream:
        detokenizer = Detokenizer(model.tokenizer)
        for event in stream:
            if isinstance(event, TokenEvent):
                yield "".join(detokenizer.push(token_id) for token_id in event.token_ids)
            else:
                yield detokenizer.flush()
                _finish(event, None, 0.0)


def _params(args: argparse.Namespace) -> SamplingParams:
    if args.max_tokens is not None and args.max_tokens < 1:
        raise BadSetting(f"--max-tokens is {args.max_tokens}; the least is 1", param="max_tokens")
    if not 0 <= args.temperature <= 2:
        raise BadSetting(f"--temperature is {args.temperature}; it lies between 0 and 2", param="temperature")
    return SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)


def _load(args: argparse.Namespace) -> ResidentModel:
    """The model by its name or alias, as the settings file wants that one."""
    import logging

    from appliance.serve import find_model, load_file

    settings = settings_from(args)
    overrides = ModelOverrides.read(settings_file_of(args))
    settings = replace(settings, model=overrides.unaliased(settings.model))
    configure_logs(as_json=settings.json_logs)
    logging.getLogger().setLevel(logging.WARNING)

    def show(text: str, share: float | None) -> None:
        if sys.stderr.isatty():
            percent = "" if share is None else f" {share:.0%}"
            sys.stderr.write(f"\r\x1b[K{text}{percent}")
            sys.stderr.flush()

    found = find_model(settings, show)
    from appliance.loader import load_model

    model = load_file(load_model, settings, overrides, found, ALL_ROOM, show)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    return model


def _encode(model: ResidentModel, prompt: str, system: str | None, *, is_raw: bool) -> list[int]:
    if is_raw or model.chat_template is None:
        return model.tokenizer.encode(prompt, parse_special=True)
    messages = [{"role": "system", "content": system}] if system else []
    return model.chat_template.encode(model.tokenizer, [*messages, {"role": "user", "content": prompt}])


def _answer(model: ResidentModel, prompt_ids: list[int], params: SamplingParams) -> int:
    started_s = time.monotonic()
    stream = model.engine.submit(prompt_ids, replace(params, stop_token_ids=model.tokenizer.stop_token_ids))
    detokenizer = Detokenizer(model.tokenizer)
    first_s: float | None = None
    try:
        for event in stream:
            if isinstance(event, TokenEvent):
                first_s = first_s or time.monotonic()
                _write("".join(detokenizer.push(token_id) for token_id in event.token_ids))
            else:
                _write(detokenizer.flush() + "\n")
                return _finish(event, first_s, started_s)
    finally:
        stream.cancel()
    return 0


def _finish(event: FinishEvent, first_s: float | None, started_s: float) -> int:
    if event.reason is FinishReason.ERROR:
        raise GenerationFailed(event.failure.message if event.failure else "generation failed")
    if sys.stderr.isatty() and first_s is not None:
        decode_s = time.monotonic() - first_s
        rate = (event.num_output_tokens - 1) / decode_s if decode_s > 0 else 0.0
        sys.stderr.write(
            f"{event.num_prompt_tokens} prompt tokens, first token after {first_s - started_s:.2f} s, "
            f"{event.num_output_tokens} tokens at {rate:.1f} per second\n"
        )
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
