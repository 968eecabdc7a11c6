"""One server under load: how it is asked, which kind of prompt it takes. Knows no order of requests."""

import random
from typing import Self

import msgspec

from appliance.bench.exchange import Clock, Exchange, Target, exchange, read_timing
from appliance.bench.prompts import PromptMaker
from appliance.bench.request_timing import RequestTiming
from appliance.errors import ApplianceError

REQUEST_TIMEOUT_S = 600.0


class ServerUnusable(ApplianceError):
    """The server answers no completion at all; the message holds what it said."""


class Session:
    """What all requests to one server have in common. Every answer is greedy and runs to its length."""

    def __init__(self, target: Target, model: str, clock: Clock, *, tokens_per_word: float | None) -> None:
        self._target = target
        self._model = model
        self._clock = clock
        self._source = random.SystemRandom()  # every prompt is new, so that no cache helps
        self.tokens_per_word = tokens_per_word  # None: the server takes token ids

    @classmethod
    async def open(cls, target: Target, model: str, clock: Clock, *, num_tokens: int) -> Self:
        """Ask for one token with each kind of prompt until one is taken; that also wakes the server.

        Raises ServerUnusable.
        """
        by_ids = cls(target, model, clock, tokens_per_word=None)
        if (await by_ids.try_once(num_tokens)).error is None:
            return by_ids
        timing = await cls(target, model, clock, tokens_per_word=1.0).try_once(num_tokens)
        if timing.error is not None:
            raise ServerUnusable(f"the server answered no completion: {timing.error}")
        ratio = (timing.num_prompt_tokens or num_tokens) / num_tokens
        return cls(target, model, clock, tokens_per_word=ratio)

    @property
    def clock(self) -> Clock:
        return self._clock

    def request(self, prompt_tokens: int, output_tokens: int, *, prompt: str | None = None) -> bytes:
        """Return a request's bytes: with a new prompt of about so many tokens, or with the one given."""
        maker = PromptMaker(num_tokens=prompt_tokens, tokens_per_word=self.tokens_per_word)
        body = {
            "model": self._model,
            "prompt": maker.make(self._source) if prompt is None else prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        return self._target.request(msgspec.json.encode(body))

    async def send(self, request: bytes) -> Exchange:
        return await exchange(self._target, request, clock=self._clock, timeout_s=REQUEST_TIMEOUT_S)

    async def try_once(self, num_tokens: int) -> RequestTiming:
        """Ask for one token after a new prompt of about so many."""
        return read_timing(await self.send(self.request(num_tokens, 1)))
