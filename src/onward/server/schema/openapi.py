"""The OpenAPI document. It is made from the route table, so it matches the server."""

from __future__ import annotations

import http
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from onward.server.http.problem import MEDIA
from onward.server.http.route import ApiRoute

SHAPE_SUFFIX = "Shape"
"""A model whose name would clash with the class that it shows ends with this suffix. The document leaves the suffix out."""
REFS = "#/components/schemas/{model}"
COMMON_ERRORS = (400, 401, 403, 500, 503)
"""Error statuses of every route that needs a key."""
OPEN_ERRORS = (400, 500, 503)
"""Error statuses of every route that needs no key."""
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
    schemas = {name.removesuffix(SHAPE_SUFFIX): shape for name, shape in _schemas(routes).items()}
    openapi: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Onward",
            "version": version,
            "description": "A durable runtime for AI agents: you give it a goal, and it goes on until the goal is reached.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM, **schemas},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "`onward keys create` creates a key."}
            },
        },
        "security": [{"key": []}, {}],
    }
    _rename(openapi)
    return openapi


def _rename(node: Any) -> None:
    """Remove SHAPE_SUFFIX from all references and titles."""
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list | tuple):
            _rename(child)
    if isinstance(node, dict):
        for name in ("$ref", "title"):
            if isinstance(node.get(name), str):
                node[name] = node[name].removesuffix(SHAPE_SUFFIX)


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
            "content": {"application/json": {"schema": {"$ref": REFS.format(model=route.body.__name__)}}},
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
        response["content"] = {"application/json": {"schema": {"$ref": REFS.format(model=shape.__name__)}}}
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
        problems[str(status)] = response
    return problems


def _schemas(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    requests = {route.body for route in routes if route.body}
    responses = {
        shape
        for route in routes
        for _, shape in route.responses.values()
        if isinstance(shape, type) and issubclass(shape, BaseModel)
    }
    modes: list[Any] = [(shape, "validation") for shape in requests]
    modes += [(shape, "serialization") for shape in responses]
    _, definitions = models_json_schema(sorted(modes, key=lambda mode: mode[0].__name__), ref_template=REFS)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas
