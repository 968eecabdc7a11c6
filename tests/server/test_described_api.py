"""Requests made of the OpenAPI document, right ones and wrong ones: answers are as it says, none is a 5xx."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from appliance.server.http_server import HttpServer
from appliance.server.openapi import build_document
from server.rig import get, make_rig, serve

pytestmark = pytest.mark.slow
DOCUMENT = build_document()
# The events never end.
OPERATIONS = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if path != "/system/v1/events"
]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with make_rig() as rig, serve(rig) as running:
        yield running
        assert get(running, "/health")[0] == 200


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("is_right", [True, False])
def test_answers_are_as_the_document_says(server: HttpServer, method: str, path: str, is_right: bool) -> None:
    import schemathesis  # loads slowly: not while tests are collected
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    if not is_right and not _takes_anything(path, method):
        pytest.skip("nothing about this request could be wrong")
    mode = schemathesis.GenerationMode.POSITIVE if is_right else schemathesis.GenerationMode.NEGATIVE
    wanted = [
        not_a_server_error,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
    ]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        case.call_and_validate(base_url=server.url, checks=wanted, timeout=60)

    check()


def _takes_anything(path: str, method: str) -> bool:
    """Whether a request of it can be wrong: a name in its path is any text."""
    operation = DOCUMENT["paths"][path][method]
    return "requestBody" in operation or any(p["in"] != "path" for p in operation.get("parameters", ()))
