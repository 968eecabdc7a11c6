"""Marks the characters of a client's text that could begin a control token. Knows no template and no ids.

Before a chat template is rendered, each such character is exchanged for a private-use one that occurs nowhere
in the request; afterwards an unmarked control token in the rendered text can only be the template's own.
The exchange is one for one, so a template may strip, cut and join the text as it likes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from appliance.errors import InvalidRequest
from appliance.text.literal_finder import LiteralFinder

# Supplementary Private Use Area-A: assigned to nobody, and of one code point each in a Python text.
_FIRST_SENTINEL = 0xF0000
_NUM_SENTINELS = 0x100

_WORD = re.compile(r"[\w.-]*", re.ASCII)


class ControlMask:
    """An exchange of characters for one request.

    `controls` finds control tokens, and `texts` is everything of the request and the template, in which no
    sentinel may occur.
    """

    def __init__(self, controls: LiteralFinder, texts: Iterable[str]) -> None:
        starts = controls.starts
        taken = set().union(*texts)
        free = (chr(_FIRST_SENTINEL + i) for i in range(_NUM_SENTINELS))
        sentinels = [sentinel for sentinel in free if sentinel not in taken]
        if len(sentinels) < len(starts):
            raise InvalidRequest(
                "the messages use too many private-use characters from U+F0000 on; remove them",
                param="messages",
            )
        self._controls = controls
        self._sentinel_of = dict(zip(sorted(starts), sentinels, strict=False))
        self._mask_table = str.maketrans(self._sentinel_of)
        self._unmask_table = str.maketrans({new: old for old, new in self._sentinel_of.items()})
        self._starts = re.compile("[" + "".join(map(re.escape, self._sentinel_of)) + "]")

    def mask_all(self, value: Any) -> Any:  # Any: JSON
        """Return the JSON value with every possible start marked."""
        return _map_texts(value, self._masked_wholly, self._masked_name)

    def mask_lookalikes(self, value: Any) -> Any:  # Any: JSON
        """Return the JSON value with only the starts of whole control tokens marked."""
        return _map_texts(value, self._masked_lookalikes, self._masked_lookalikes)

    def unmask(self, text: str) -> str:
        """Return the text as the client wrote it."""
        return text.translate(self._unmask_table)

    def _masked_wholly(self, text: str) -> str:
        return text.translate(self._mask_table)

    def _masked_name(self, text: str) -> str:
        """Mask a key or role. A template compares plain words, and may build its own markers from them."""
        return self._masked_lookalikes(text) if _WORD.fullmatch(text) else self._masked_wholly(text)

    def _masked_lookalikes(self, text: str) -> str:
        return self._starts.sub(
            lambda start: (
                self._sentinel_of[start.group()]
                if self._controls.match(text, start.start())
                else start.group()
            ),
            text,
        )


def texts_in(value: Any) -> Iterator[str]:  # Any: JSON
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def _map_texts(
    value: Any, change: Callable[[str], str], change_name: Callable[[str], str]
) -> Any:  # Any: JSON
    """Return the JSON value with its texts changed; keys and roles go through `change_name`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change_name(str(key)): _map_texts(item, change_name if key == "role" else change, change_name)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_texts(item, change, change_name) for item in value]
    return value
