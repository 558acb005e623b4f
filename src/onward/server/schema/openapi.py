"""The OpenAPI document: made from the table of calls, so that it is true."""

from __future__ import annotations

import http
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from onward.server.http.problem import MEDIA
from onward.server.http.route import ApiRoute

OURS = "Shape"
"""How our classes end that would otherwise be named like those they show."""
REFS = "#/components/schemas/{model}"
EVERYWHERE = (400, 401, 403, 500, 503)
"""Problems that every call can answer with."""
OPEN = (400, 500, 503)
"""Those of calls that need no key."""

PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457). `code` is stable and meant for programs, `detail` for people.",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "examples": ["task_not_found", "key_conflict", "queue_full"]},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "task_id": {"type": "string"},
        "retry_after": {"type": "number", "description": "Seconds after which it makes sense to ask again."},
    },
}


def document(calls: Sequence[ApiRoute], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    paths["/api/tasks"]["post"]["responses"]["202"]["links"] = _links(calls)
    schemas = {name.removesuffix(OURS): shape for name, shape in _schemas(calls).items()}
    whole: dict[str, Any] = {
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
                "key": {"type": "http", "scheme": "bearer", "description": "`onward keys create` makes one."}
            },
        },
        "security": [{"key": []}, {}],
    }
    _rename(whole)
    return whole


def _rename(told: Any) -> None:
    """A shape of a task is a Task to everybody else."""
    for one in told.values() if isinstance(told, dict) else told:
        if isinstance(one, dict | list | tuple):
            _rename(one)
    if isinstance(told, dict):
        for name in ("$ref", "title"):
            if isinstance(told.get(name), str):
                told[name] = told[name].removesuffix(OURS)


def _links(calls: Sequence[ApiRoute]) -> dict[str, Any]:
    """What can be done with a task that was just submitted."""
    of_a_task = [call for call in calls if re.fullmatch(r"/api/tasks/{id}(/\w+)?", call.path)]
    return {
        call.name: {"operationId": call.name, "parameters": {"id": "$response.body#/task_id"}} for call in of_a_task
    }


def _operation(call: ApiRoute) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.says,
        "tags": [call.tag],
        "parameters": _parameters(call),
        "responses": {str(status): _answer(call, status) for status in call.answers} | _problems(call),
    }
    if call.open:
        told["security"] = []
    if call.body is not None:
        told["requestBody"] = {
            "required": any(field.is_required() for field in call.body.model_fields.values()),
            "content": {"application/json": {"schema": {"$ref": REFS.format(model=call.body.__name__)}}},
        }
    return told


def _parameters(call: ApiRoute) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", call.path)
    ]
    if call.query is not None:
        schema = call.query.model_json_schema(ref_template=REFS)
        told += [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": _plain(shape)}
            for name, shape in schema["properties"].items()
        ]
    told += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
        for name, text in call.headers.items()
    ]
    return told


def _plain(shape: dict[str, Any]) -> dict[str, Any]:
    """In a query there is no null: what may be left out is left out."""
    kinds = [one for one in shape.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        shape = {**{name: value for name, value in shape.items() if name not in {"anyOf", "default"}}, **kinds[0]}
    return {name: value for name, value in shape.items() if name != "title"}


def _answer(call: ApiRoute, status: int) -> dict[str, Any]:
    text, shape = call.answers[status]
    told: dict[str, Any] = {"description": text}
    if status in {201, 202} and call.method == "POST":
        told["headers"] = {"Location": {"schema": {"type": "string"}, "description": "Where it is."}}
    if shape is bytes or shape is str:
        told["content"] = {call.media: {"schema": {"type": "string"}}}
    elif shape is not None:
        told["content"] = {"application/json": {"schema": {"$ref": REFS.format(model=shape.__name__)}}}
        if call.streams:
            told["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return told


def _problems(call: ApiRoute) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in sorted({*(OPEN if call.open else EVERYWHERE), *call.errors, *((422,) if call.query else ())}):
        told: dict[str, Any] = {
            "description": http.HTTPStatus(status).phrase,
            "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in {429, 503}:
            told["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
        found[str(status)] = told
    return found


def _schemas(calls: Sequence[ApiRoute]) -> dict[str, Any]:
    coming = {call.body for call in calls if call.body}
    going = {
        shape
        for call in calls
        for _, shape in call.answers.values()
        if isinstance(shape, type) and issubclass(shape, BaseModel)
    }
    wanted: list[Any] = [(shape, "validation") for shape in coming]
    wanted += [(shape, "serialization") for shape in going]
    _, told = models_json_schema(sorted(wanted, key=lambda one: one[0].__name__), ref_template=REFS)
    schemas: dict[str, Any] = told["$defs"]
    return schemas
