"""Builds the HTTP application: routes, error shapes, and the gate before them. Knows no sockets."""

from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp

from appliance.errors import ApplianceError
from appliance.observe.history import RequestHistory
from appliance.server.access import AccessRules
from appliance.server.anthropic import anthropic_routes
from appliance.server.appliance_state import ApplianceState
from appliance.server.cross_origin import OriginRules
from appliance.server.embeddings import embedding_routes
from appliance.server.error_responses import (
    handle_appliance_error,
    handle_client_gone,
    handle_http_exception,
    handle_unexpected,
)
from appliance.server.metrics import metrics_routes
from appliance.server.ollama import ollama_routes
from appliance.server.ollama_embeddings import ollama_embedding_routes
from appliance.server.ollama_models import ollama_model_routes
from appliance.server.openai import openai_routes
from appliance.server.openapi import openapi_routes
from appliance.server.operations import operation_routes
from appliance.server.request_body import ClientGone
from appliance.server.request_routes import request_routes
from appliance.server.request_tracing import Finished, TracedRequests
from appliance.server.rerank import rerank_routes
from appliance.server.response_counts import ResponseCounts
from appliance.server.responses import responses_routes
from appliance.server.security import Gate
from appliance.server.snapshot import SnapshotSource
from appliance.server.system import system_routes
from appliance.server.system_models import system_model_routes
from appliance.server.web_page import web_routes


def create_app(
    state: ApplianceState,
    *,
    access: AccessRules,
    snapshots: SnapshotSource | None = None,
    hosts: frozenset[str] = frozenset(),
    origins: OriginRules | None = None,
    history: RequestHistory | None = None,
    finished: Finished | None = None,
) -> ASGIApp:
    """Return the ASGI application. Where no key is required only loopback names are answered.

    `finished` is told of every POST that ended.
    """
    snapshots = snapshots or SnapshotSource(state)
    responses = ResponseCounts()
    app = Litestar(
        route_handlers=[
            *web_routes(),
            *system_routes(state, snapshots),
            *system_model_routes(state),
            *openai_routes(state),
            *responses_routes(state),
            *embedding_routes(state),
            *rerank_routes(state),
            *ollama_routes(state),
            *ollama_embedding_routes(state),
            *ollama_model_routes(state),
            *anthropic_routes(state),
            *operation_routes(state),
            *request_routes(state.latency.requests, history),
            *metrics_routes(state, responses),
            *openapi_routes(),
        ],
        exception_handlers={
            ApplianceError: handle_appliance_error,
            HTTPException: handle_http_exception,
            ClientGone: handle_client_gone,
            Exception: handle_unexpected,
        },
        openapi_config=None,
        logging_config=None,
    )
    gate = Gate(app, access=access, hosts=hosts, origins=origins, responses=responses)
    return TracedRequests(gate, finished)
