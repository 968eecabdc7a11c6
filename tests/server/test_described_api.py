"""Requests made of the OpenAPI document, right ones and wrong ones: answers are as it says, none is a 5xx."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from appliance.server.http_server import HttpServer
from appliance.server.openapi import build_document
from server.rig import get, make_rig, serve

pytestmark = pytest.mark.slow
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


# The events never end.
SCHEMA = schemathesis.openapi.from_dict(build_document()).exclude(path="/system/v1/events")
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with make_rig() as rig, serve(rig) as running:
        yield running
        assert get(running, "/health")[0] == 200


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_answers_are_as_the_document_says(server: HttpServer, label: str, mode: GenerationMode) -> None:
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)

    with contextlib.suppress(Unsatisfiable):  # some have nothing that could be wrong
        check()
