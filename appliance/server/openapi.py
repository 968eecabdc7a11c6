"""The OpenAPI document and the page that shows it: both made of the routes' table, neither asks elsewhere."""

import html
import json
import re
from typing import Any

import msgspec
from litestar import MediaType, Response, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler

from appliance import __version__
from appliance.server.error_responses import json_response
from appliance.server.openapi_table import ERRORS, JSON, OPERATIONS, Operation

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_REFERENCE = "#/components/schemas/{name}"
Json = dict[str, Any]  # Any: JSON


def openapi_routes() -> list[HTTPRouteHandler]:
    """The handlers of `/openapi.json` and `/docs`. Both are made once."""
    document = build_document()
    as_json, as_page = msgspec.json.encode(document), build_page(document)

    @route("/openapi.json", http_method=_LOOK, sync_to_thread=False)
    def openapi_json() -> Response[bytes]:
        return json_response(as_json)

    @route("/docs", http_method=_LOOK, sync_to_thread=False)
    def docs_page() -> Response[str]:
        # No script and nothing from elsewhere, and the browser holds us to it.
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return Response(as_page, media_type=MediaType.HTML, headers={"content-security-policy": policy})

    return [openapi_json, docs_page]


def build_document() -> Json:
    """Return the OpenAPI 3.1 document of OPERATIONS."""
    types = {t for operation in OPERATIONS for t in (operation.request, operation.answer) if t is not None}
    ordered = sorted(types | set(ERRORS.values()), key=lambda t: (t.__name__, t.__module__))
    found, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schemas = dict(zip(ordered, found, strict=True))
    paths: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Inference appliance",
            "version": __version__,
            "description": "One language model server for OpenAI, Ollama and Anthropic clients.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def build_page(document: Json) -> str:
    """Return the document as a page of plain HTML."""
    groups = dict.fromkeys(operation.group for operation in OPERATIONS)
    parts = [f"<h2>{group}</h2>" + "".join(map(_section, _of_group(group))) for group in groups]
    schemas = "".join(_schema_section(*item) for item in sorted(document["components"]["schemas"].items()))
    return _PAGE.format(version=html.escape(__version__), routes="".join(parts), schemas=schemas)


def _of_group(group: str) -> list[Operation]:
    return [operation for operation in OPERATIONS if operation.group == group]


def _operation(operation: Operation, schemas: dict[Any, Json]) -> Json:
    described: Json = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.group],
        "responses": _responses(operation, schemas),
    }
    if operation.needs_key:
        # The empty one: without a key set, loopback clients need none.
        described["security"] = [{"bearer": []}, {"header": []}, {}]
    if names := re.findall(r"\{(\w+)\}", operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schemas[operation.request]}},
        }
    return described


def _responses(operation: Operation, schemas: dict[Any, Json]) -> Json:
    content: Json = {}
    if operation.answer is not None:
        content[operation.media_type] = {"schema": schemas[operation.answer]}
    elif operation.media_type != JSON:
        content[operation.media_type] = {"schema": {"type": "string"}}
    if operation.stream is not None:
        content[operation.stream] = {"schema": {"type": "string"}}
    error = ERRORS.get(operation.group, ERRORS["OpenAI"])
    good: Json = {"description": "the answer"} | ({"content": content} if content else {})
    bad = {"description": "what was wrong", "content": {JSON: {"schema": schemas[error]}}}
    # Health says in its own words that it is not well yet.
    unready = {"503": good | {"description": "not ready"}} if operation.path == "/health" else {}
    return {"200": good, **unready, "default": bad}


def _operation_id(operation: Operation) -> str:
    return f"{operation.method}{operation.path}".replace("/", "_").replace("{", "").replace("}", "").lower()


def _section(operation: Operation) -> str:
    def linked(title: str, schema: Any) -> str:  # Any: a Struct type or None
        if schema is None:
            return ""
        name = html.escape(schema.__name__)
        return f'<li>{title}: <a href="#schema-{name}"><code>{name}</code></a></li>'

    stream = f"<li>streamed as <code>{operation.stream}</code></li>" if operation.stream else ""
    key = "" if operation.needs_key else "<li>needs no key</li>"
    return (
        f"<section><h3><code>{operation.method} {html.escape(operation.path)}</code></h3>"
        f"<p>{html.escape(operation.summary)}</p><ul>"
        f"{linked('request', operation.request)}{linked('answer', operation.answer)}{stream}{key}"
        "</ul></section>"
    )


def _schema_section(name: str, schema: Json) -> str:
    text = html.escape(json.dumps(schema, indent=2))
    name = html.escape(name)
    return f'<details id="schema-{name}"><summary>{name}</summary><pre>{text}</pre></details>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Inference appliance: API</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }}
code, pre {{ font-family: ui-monospace, monospace; font-size: .9em; }}
h3 {{ margin-bottom: 0; }} section p {{ margin: .2rem 0; }}
pre {{ overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: .4rem; }}
</style></head><body>
<h1>Inference appliance {version}</h1>
<p>Everything here is also in <a href="openapi.json"><code>openapi.json</code></a>. Unknown fields are
ignored; known ones that cannot be honoured are refused by name.</p>
{routes}
<h2>Schemas</h2>
{schemas}
</body></html>
"""
