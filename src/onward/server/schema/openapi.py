"""The OpenAPI document. It is made from the route table, so it matches the server."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import create_model
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from onward.server.http.problem import MEDIA
from onward.server.http.route import ApiRoute
from onward.server.schema.shape import Shape

SHAPE_SUFFIX = "Shape"
"""A model whose name would clash with the class that it shows ends with this suffix. The document leaves the suffix out."""
VIEW_NAMES = {
    "WorkerView": "Worker",
    "HandlerView": "Handler",
    "TurnView": "Turn",
    "Check": "Finding",
    "Acted": "Outcome",
    "Refused": "RefusedTask",
}
"""Views that the document names otherwise."""
REFS = "#/components/schemas/{model}"
COMMON_ERRORS = (400, 401, 403, 429, 500, 503)
"""Error statuses of every route that needs a key."""
OPEN_ERRORS = (400, 500, 503)
"""Error statuses of every route that needs no key."""
RATE_HEADERS = {
    "RateLimit-Policy": {
        "schema": {"type": "string"},
        "description": "Requests in a window, for the tenant and for the key.",
    },
    "RateLimit": {
        "schema": {"type": "string"},
        "description": "Requests that are left, and seconds until all are back.",
    },
}
"""Headers of every response to a key with a tenant."""
BODY_ERRORS = (413, 415, 422)
QUERY_ERRORS = (422,)

PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457). `code` is stable, for programs; `detail` is a sentence for people.",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "examples": ["task_not_found", "key_conflict", "queue_full"]},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "task_id": {"type": "string"},
        "retry_after": {"type": "number", "description": "Seconds to wait before the next try."},
    },
}


def document(routes: Sequence[ApiRoute], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths["/api/tasks"]["post"]["responses"]["202"]["links"] = _links(routes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Onward",
            "version": version,
            "description": "A durable runtime for AI agents: you give it a goal, and it goes on until the goal is reached.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM, **_schemas(routes)},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "`onward keys create` creates a key."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "__Host-onward",
                    "description": "The cookie of a person who signed in. It counts only with the header `Onward-Console`.",
                },
            },
        },
        "security": [{"key": []}, {"session": []}, {}],
    }


def _name(shape: str) -> str:
    """The name that the document has for a model or a view."""
    return VIEW_NAMES.get(shape, shape.removesuffix(SHAPE_SUFFIX))


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": REFS.format(model=_name(shape.__name__))}


def _links(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """The operations that take the id of a task that was just submitted."""
    task_routes = [route for route in routes if re.fullmatch(r"/api/tasks/{id}(/\w+)?", route.path)]
    return {
        route.name: {"operationId": route.name, "parameters": {"id": "$response.body#/task_id"}}
        for route in task_routes
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": {str(status): _response(route, status) for status in route.responses} | _problems(route),
    }
    if route.open:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": any(field.is_required() for field in route.body.model_fields.values()),
            "content": {"application/json": {"schema": _ref(route.body)}},
        }
    return operation


def _parameters(route: ApiRoute) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not None:
        schema = route.query.model_json_schema(ref_template=REFS)
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "schema": _query_schema(shape),
            }
            for name, shape in schema["properties"].items()
        ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
        for name, text in route.headers.items()
    ]
    return parameters


def _query_schema(shape: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter. A query has no null: an optional parameter is left out instead."""
    kinds = [option for option in shape.get("anyOf", ()) if option != {"type": "null"}]
    if len(kinds) == 1:
        shape = {**{name: value for name, value in shape.items() if name not in {"anyOf", "default"}}, **kinds[0]}
    return {name: value for name, value in shape.items() if name != "title"}


def _response(route: ApiRoute, status: int) -> dict[str, Any]:
    text, shape = route.responses[status]
    response: dict[str, Any] = {"description": text}
    if status in {201, 202} and route.method == "POST":
        response["headers"] = {"Location": {"schema": {"type": "string"}, "description": "The path of the new object."}}
    if shape is bytes or shape is str:
        response["content"] = {route.media: {"schema": {"type": "string"}}}
    elif shape is not None:
        response["content"] = {"application/json": {"schema": _ref(shape)}}
        if route.streams:
            response["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return response


def _problems(route: ApiRoute) -> dict[str, Any]:
    problems: dict[str, Any] = {}
    statuses = {*(OPEN_ERRORS if route.open else COMMON_ERRORS), *route.errors}
    statuses.update(BODY_ERRORS if route.body else (), QUERY_ERRORS if route.query else ())
    for status in sorted(statuses):
        response: dict[str, Any] = {
            "description": http.HTTPStatus(status).phrase,
            "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in {429, 503}:
            response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
        if status == 429:
            response["headers"] |= RATE_HEADERS
        problems[str(status)] = response
    return problems


class _SchemaGenerator(GenerateJsonSchema):
    """Generates schemas under the names of the document. The server sends all fields of a view, also those with a default."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(_name(name))

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def dataclass_field_schema(self, schema: Any) -> dict[str, Any]:
        return {name: value for name, value in super().dataclass_field_schema(schema).items() if name != "default"}


def _schemas(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """The schemas of all models and views. They are fields of two models here, which are not in the document: pydantic then treats a
    dataclass as it treats a model of ours."""
    bodies = {route.body for route in routes if route.body}
    shapes = {shape for route in routes for _, shape in route.responses.values() if shape not in {None, bytes, str}}
    requests, responses = _umbrella("_Requests", bodies), _umbrella("_Responses", shapes)
    _, definitions = models_json_schema(
        [(requests, "validation"), (responses, "serialization")], ref_template=REFS, schema_generator=_SchemaGenerator
    )
    schemas: dict[str, Any] = definitions["$defs"]
    del schemas[requests.__name__], schemas[responses.__name__]
    return {name: {**schema, "title": name} for name, schema in schemas.items()}


def _umbrella(name: str, shapes: Iterable[type]) -> type[Shape]:
    fields: dict[str, Any] = {shape.__name__: (shape, ...) for shape in shapes}
    return create_model(name, __base__=Shape, **fields)
