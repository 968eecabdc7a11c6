"""Keeps responses for a while, so that a client may go on from one by its id. Knows no protocol's meaning.

In memory alone: nothing of a conversation is written to disk. Bounded in bytes and in age; the oldest go
first. A tenant sees its own and no other's. Belongs to the event loop.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from appliance.errors import ApplianceError, ErrorKind
from appliance.server.responses_schemas import InputItem, ResponseBody

MAX_BYTES = 64 * 2**20
MAX_AGE_S = 24 * 3600.0


class UnknownResponse(ApplianceError):
    """No stored response, or item of one, has this id."""

    kind = ErrorKind.NOT_FOUND
    code = "response_not_found"

    def __init__(self, response_id: str, *, param: str) -> None:
        super().__init__(
            f"there is no stored response or item '{response_id[:80]}'; they are kept for a day at most, in "
            "memory, unless 'store' is false: send the conversation itself",
            param=param,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """`input_items` are those of this request alone; `conversation` all before and the answer's own."""

    body: ResponseBody
    input_items: tuple[InputItem, ...]
    conversation: tuple[InputItem, ...]
    kept_s: float
    num_bytes: int


class ResponsesStore:
    """Responses by tenant and id."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_age_s: float = MAX_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._num_bytes = 0

    def keep(
        self,
        tenant: str,
        body: ResponseBody,
        input_items: Sequence[InputItem],
        before: Sequence[InputItem],
    ) -> None:
        """Keep a response; one that alone is over the limit is forgotten at once."""
        output = msgspec.convert(body.output, list[InputItem])
        conversation = (*before, *input_items, *output)
        num_bytes = len(msgspec.json.encode((body, conversation)))
        self._kept[tenant, body.id] = StoredResponse(
            body=body,
            input_items=tuple(input_items),
            conversation=conversation,
            kept_s=self._clock(),
            num_bytes=num_bytes,
        )
        self._num_bytes += num_bytes
        self._forget_the_oldest()

    def get(self, tenant: str, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """Raises UnknownResponse."""
        self._forget_the_oldest()
        found = self._kept.get((tenant, response_id))
        if found is None:
            raise UnknownResponse(response_id, param=param)
        return found

    def item(self, tenant: str, item_id: str, *, param: str) -> InputItem:
        """Return an item of any stored conversation, the latest first. Raises UnknownResponse."""
        self._forget_the_oldest()
        for (owner, _), stored in reversed(self._kept.items()):
            for item in stored.conversation if owner == tenant else ():
                if item.id == item_id:
                    return item
        raise UnknownResponse(item_id, param=param)

    def delete(self, tenant: str, response_id: str) -> None:
        """Raises UnknownResponse."""
        self.get(tenant, response_id)
        self._drop((tenant, response_id))

    def _forget_the_oldest(self) -> None:
        too_old_s = self._clock() - self._max_age_s
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if self._num_bytes <= self._max_bytes and oldest.kept_s > too_old_s:
                return
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._num_bytes -= self._kept.pop(key).num_bytes
