"""`GET /system/v1/requests`: finished requests with their stages, and percentiles. Holds none itself."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler

from appliance.errors import InvalidRequest
from appliance.observe.history import KEPT_S, RequestHistory
from appliance.observe.request_record import STAGES, RequestRecord
from appliance.observe.request_ring import CAPACITY, RequestRing, percentiles_of
from appliance.server.error_responses import json_response
from appliance.server.schemas import FinishedRequests, Percentiles, RequestStages, StagePercentiles

_MEASURES = (*STAGES, "ttft", "tpot", "total")
_GROUPS: dict[str, Callable[[RequestRecord], str]] = {
    "all": lambda _: "all",
    "model": lambda record: record.model,
    "class": lambda record: record.service_class,
    "length": lambda record: record.length_bucket,
}
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)


def request_routes(ring: RequestRing, history: RequestHistory | None) -> list[HTTPRouteHandler]:
    """The handler of `/system/v1/requests`."""

    @route("/system/v1/requests", http_method=_LOOK, sync_to_thread=True)
    def list_requests(request: Request[Any, Any, Any]) -> Response[bytes]:
        asked = request.query_params
        window_s = _number(asked.get("window_s", "600"), "window_s", most=KEPT_S)
        limit = _number(asked.get("limit", "100"), "limit", most=CAPACITY)
        group = asked.get("by", "all")
        if group not in _GROUPS:
            raise InvalidRequest(f"'by' is '{group[:40]}'; take one of {', '.join(_GROUPS)}", param="by")
        since_s = time.time() - window_s
        if asked.get("history") == "1" and history is not None:
            records = history.since(since_s, limit=CAPACITY)
        else:
            records = ring.since(since_s)
        shown = [msgspec.convert(r, RequestStages, from_attributes=True) for r in records[: int(limit)]]
        found = FinishedRequests(
            window_s=window_s, requests=shown, percentiles=_grouped(records, _GROUPS[group])
        )
        return json_response(msgspec.json.encode(found))

    return [list_requests]


def _grouped(
    records: list[RequestRecord], group_of: Callable[[RequestRecord], str]
) -> list[StagePercentiles]:
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[group_of(record)].append(record)
    return [
        StagePercentiles(group=name, stages={stage: _percentiles(members, stage) for stage in _MEASURES})
        for name, members in sorted(groups.items())
    ]


def _percentiles(records: list[RequestRecord], stage: str) -> Percentiles:
    reading = percentiles_of(records, lambda record: record.stage_s(stage))
    return Percentiles(count=reading[0], p50_s=reading.p50, p95_s=reading.p95, p99_s=reading.p99)


def _number(text: str, name: str, *, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= most:
        raise InvalidRequest(f"'{name}' is '{text[:40]}'; take a number from 0 to {most:g}", param=name)
    return value
