"""Messages to the prompt a model was trained on, by the template in its file. Knows no HTTP and no engine.

A client's text never becomes a control token, whatever the template does with it; the template's own markers
always do.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import InvalidRequest, UnsupportedModel
from appliance.text.control_mask import ControlMask, texts_in
from appliance.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]  # Any: JSON, as the client sent it

# Far above any honest template: a 100-message chat renders in a few milliseconds.
MAX_RENDER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What the client supplies to one rendering, as JSON values."""

    messages: list[Any]
    tools: list[Any] | None
    extra: dict[str, Any]


class ChatTemplate:
    """A compiled template. Raises UnsupportedModel when its source cannot be compiled."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        # Loaded here: what only names this type must not load jinja2.
        from jinja2 import TemplateError

        from appliance.text.template_sandbox import build_environment

        self.source = source
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template: Template = build_environment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise UnsupportedModel(f"the model's chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> str:
        """Return the prompt's text. `extra` names further values for the template.

        A message's content that is null or absent is rendered as "". Raises InvalidRequest in the template's
        own words where it refuses the messages, or when the text or the time passes a bound;
        UnsupportedModel where the template itself does what it may not.
        """
        return self._rendered(_inputs(messages, tools, extra), add_generation_prompt)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> list[int]:
        """Return the prompt's token ids, with one BOS where the model wants it. Raises as `render` does.

        The ids equal those of the rendered text, but for control tokens that a client's text spells out:
        those are encoded as ordinary text.
        """
        segments = self.segments(
            tokenizer, messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
        )
        return encode_prompt(tokenizer, segments)

    def segments(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> list[str | int]:
        """Return the prompt as texts and control tokens, for `encode_prompt`. Raises as `render` does."""
        return self._segments(tokenizer, _inputs(messages, tools, extra), add_generation_prompt)

    def _segments(self, tokenizer: Tokenizer, inputs: _Inputs, add_prompt: bool) -> list[str | int]:
        plain = self._rendered(inputs, add_prompt)
        texts = list(texts_in([inputs.messages, inputs.tools, inputs.extra]))
        if not any(start in text for text in texts for start in tokenizer.controls.starts):
            return tokenizer.split_control(plain)
        mask = ControlMask(tokenizer.controls, [*texts, self.source])
        segments = self._masked_segments(tokenizer, inputs, add_prompt, mask, plain)
        return [mask.unmask(segment) if isinstance(segment, str) else segment for segment in segments]

    def _masked_segments(
        self, tokenizer: Tokenizer, inputs: _Inputs, add_prompt: bool, mask: ControlMask, plain: str
    ) -> list[str | int]:
        """Return the rendered text, still masked, cut at the control tokens that are the template's own."""
        strict = self._rendered(_mapped(inputs, mask.mask_all), add_prompt)
        strict_segments = tokenizer.split_control(strict)
        if mask.unmask(strict) == plain:
            return strict_segments
        # The template looks into the text (for "</think>", say), so marking less keeps what it looks for.
        # That is as safe if it yields the same control tokens; if not, text was pieced together into one.
        loose_segments = tokenizer.split_control(
            self._rendered(_mapped(inputs, mask.mask_lookalikes), add_prompt)
        )
        is_safe = _control_ids(loose_segments) == _control_ids(strict_segments)
        return loose_segments if is_safe else strict_segments

    def _rendered(self, inputs: _Inputs, add_prompt: bool) -> str:
        from jinja2.exceptions import SecurityError, TemplateError

        from appliance.text.template_sandbox import bounded_range

        context = {
            **inputs.extra,
            **self._constants,
            "messages": inputs.messages,
            "tools": inputs.tools,
            "add_generation_prompt": add_prompt,
            "range": bounded_range(),
        }
        try:
            return self._joined(context)
        except SecurityError as error:
            raise UnsupportedModel(f"the model's chat template is refused: {error}") from error
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidRequest(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error

    def _joined(self, context: Mapping[str, Any]) -> str:
        """Return the rendered text, cut off with InvalidRequest past its bounds in size and time."""
        from appliance.text.template_sandbox import MAX_RENDERED_CHARS

        deadline_s = time.monotonic() + MAX_RENDER_S
        chunks: list[str] = []
        num_chars = 0
        for chunk in self._template.generate(context):
            chunks.append(chunk)
            num_chars += len(chunk)
            if num_chars > MAX_RENDERED_CHARS:
                raise InvalidRequest(
                    f"the prompt has more than {MAX_RENDERED_CHARS} characters; shorten the messages",
                    param="messages",
                )
            if time.monotonic() > deadline_s:
                raise InvalidRequest(
                    f"the chat template took more than {MAX_RENDER_S:.0f} s; shorten the messages",
                    param="messages",
                )
        return "".join(chunks)


def encode_prompt(tokenizer: Tokenizer, segments: list[str | int]) -> list[int]:
    """Return the token ids of a template's segments, with one BOS where the model wants it."""
    return tokenizer.with_bos(tokenizer.encode_segments(segments))


def _inputs(
    messages: Sequence[Message], tools: Sequence[Message] | None, extra: Mapping[str, Any] | None
) -> _Inputs:
    return _Inputs(
        messages=[_with_content(message) for message in messages],
        tools=list(tools) if tools else None,
        extra=dict(extra or {}),
    )


def _with_content(message: Message) -> dict[str, Any]:
    """Return the message with "" for a content that is null or absent: templates join it to texts."""
    content = message.get("content")
    return {**message, "content": "" if content is None else content}


def _mapped(inputs: _Inputs, change: Callable[[Any], Any]) -> _Inputs:  # Any: JSON
    return _Inputs(messages=change(inputs.messages), tools=change(inputs.tools), extra=change(inputs.extra))


def _control_ids(segments: list[str | int]) -> list[int]:
    return [segment for segment in segments if isinstance(segment, int)]
