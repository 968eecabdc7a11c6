"""What belongs to the HTTP request that is being served here: its id, its trace, its stages before the queue.

Knows no HTTP. A context variable carries it, so that whatever a request calls, in tasks and worker threads
too, may time a stage or log a line without being handed it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

from appliance.observe.request_record import RequestRecord
from appliance.observe.traceparent import TraceParent


class Stage(StrEnum):
    """Work before the queue that is timed by itself; what is left of it is parsing."""

    LOAD = "load"
    TEMPLATE = "template"
    TOKENIZE = "tokenize"
    GRAMMAR = "grammar"


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """One request's; its owner is the request's own task. `record` comes with the end of an answer."""

    request_id: str
    path: str = ""
    parent: TraceParent | None = None
    started_unix_s: float = field(default_factory=time.time)
    seconds: dict[Stage, float] = field(default_factory=dict)
    record: RequestRecord | None = None

    def spent_s(self, stage: Stage) -> float:
        return self.seconds.get(stage, 0.0)


# The one global: a context variable has to be.
_CURRENT: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def current_request() -> RequestContext | None:
    """The request that is served in this context; None outside of any."""
    return _CURRENT.get()


@contextmanager
def serving(context: RequestContext) -> Iterator[None]:
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def timed(stage: Stage) -> Iterator[None]:
    """Add the time spent inside to the current request's stage."""
    context = _CURRENT.get()
    began_s = time.perf_counter()
    try:
        yield
    finally:
        if context is not None:
            context.seconds[stage] = context.spent_s(stage) + time.perf_counter() - began_s
