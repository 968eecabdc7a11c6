"""The jinja2 environment in which a model's chat template runs. Knows what it may not do; knows no messages.

A template comes with a model file, so it is foreign code: it sees immutable values and no Python internals,
and its work is bounded. Functions and filters are those that templates expect from transformers.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from appliance.errors import InvalidRequest

# Ten times the text of a 128k-token context; a longer prompt cannot be served anyway.
MAX_RENDERED_CHARS = 8 * 1024 * 1024

_MAX_EXPONENT = 64

# First and last of the sentinels (see ControlMask), as json writes them with ensure_ascii.
_ESCAPED_SENTINEL = re.compile(r"\\udb80\\udc[0-9a-f]{2}")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that also refuses to build huge values out of small ones."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # Any: jinja2's own
        """Compute one of `intercepted_binops`. Raises SecurityError when the result would be huge."""
        if operator == "**" and not _is_small_power(left, right):
            raise SecurityError(f"the power {left!r:.20} ** {right!r:.20} is too large for a chat template")
        if operator == "*" and _product_size(left, right) > MAX_RENDERED_CHARS:
            raise SecurityError(f"a repeated value would have more than {MAX_RENDERED_CHARS} items")
        return super().call_binop(context, operator, left, right)


class GenerationTag(Extension):
    """{% generation %} marks an assistant's words for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def build_environment() -> TemplateEnvironment:
    """Return an environment with the options, filters and functions that chat templates are written for."""
    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    # Makes text out of nothing, and is a known way out of weaker sandboxes.
    del environment.globals["lipsum"]
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def bounded_range() -> Callable[..., range]:
    """Return a `range` for one rendering, whose calls share one budget, so that nested loops end."""
    num_left = MAX_RANGE

    def take_range(*bounds: int) -> range:
        nonlocal num_left
        values = range(*bounds)
        num_left -= len(values)
        if num_left < 0:
            raise SecurityError(f"the template loops over more than {MAX_RANGE} numbers")
        return values

    return take_range


def to_json(
    value: Any,  # Any: whatever a template holds
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter with transformers' options: no HTML escapes, and letters kept as they are."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _ESCAPED_SENTINEL.sub(_unescape, text) if ensure_ascii else text


def raise_exception(message: str) -> str:
    """Refuse the messages in the template's own words. Raises InvalidRequest."""
    raise InvalidRequest(str(message), param="messages")


def strftime_now(layout: str) -> str:
    """Return the local date and time in the given strftime layout."""
    return datetime.now().astimezone().strftime(layout)


def _unescape(match: re.Match[str]) -> str:
    text: str = json.loads(f'"{match.group()}"')
    return text


def _is_small_power(left: Any, right: Any) -> bool:  # Any: a template's operands
    return isinstance(right, int | float) and right <= _MAX_EXPONENT and abs(left) <= MAX_RENDERED_CHARS


def _product_size(left: Any, right: Any) -> int:  # Any: a template's operands
    """Return the number of items in a repetition, 0 for a product of numbers."""
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(count, int):
            return len(items) * count
    return 0
