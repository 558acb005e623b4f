"""The reference of the HTTP API as a page, made from the OpenAPI document: `python -m rig.reference > docs/api.md`."""

from __future__ import annotations

import json
from typing import Any

from onward.app.application import VERSION
from onward.server.http.app import ROUTES
from onward.server.schema.openapi import document

HEAD = """\
# The HTTP API

Look calls up here when you use a server (`onward serve`, [serving](guides/serving.md)) without the [Python client](guides/clients.md). This submits a
task, and the response has its id:

```console
$ curl -s localhost:8765/api/tasks -H 'Content-Type: application/json' -d '{"task": "deploy", "input": "web"}'
```

The page is made from the OpenAPI document, which a running server has at `/openapi.json`. Errors are `application/problem+json` with a stable
`code`. Times are ISO 8601 in UTC. With keys set, every call needs `Authorization: Bearer KEY` ([keys](guides/keys.md)), or the
cookie of a session ([sign-in](guides/sign-in.md)). [Who may do what](reference/permissions.md) lists the scope of each call.
"""


def page(told: dict[str, Any]) -> str:
    """All calls, by tag and path."""
    found: dict[str, list[str]] = {}
    for path, methods in told["paths"].items():
        for method, call in methods.items():
            found.setdefault(call["tags"][0], []).append(_call(method.upper(), path, call))
    parts = [f"## {tag.capitalize()}\n\n" + "\n".join(calls) for tag, calls in found.items()]
    shapes = [_shape(name, schema) for name, schema in sorted(told["components"]["schemas"].items())]
    return "\n".join([HEAD, *parts, "## Shapes\n", *shapes])


def _call(method: str, path: str, call: dict[str, Any]) -> str:
    lines = [f"### `{method} {path}`\n", f"{call['summary']}\n"]
    for one in call["parameters"]:
        if one["in"] != "path":
            lines.append(f"- {one['in']} `{one['name']}` ({_kind(one['schema'])}){_told(one)}")
    if "requestBody" in call:
        lines.append(f"- body: {_kind(call['requestBody']['content']['application/json']['schema'])}")
    for status, answer in call["responses"].items():
        if int(status) < 400:
            shape = next(iter(answer.get("content", {}).values()), {}).get("schema", {})
            lines.append(f"- **{status}** {answer['description']} {_kind(shape) if shape else ''}".rstrip())
    problems = [status for status in call["responses"] if int(status) >= 400]
    return "\n".join([*lines, f"- problems: {', '.join(problems)}", ""])


def _shape(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {name}\n", *([f"{schema['description']}\n"] if "description" in schema else [])]
    needed = schema.get("required", ())
    for field, kind in schema.get("properties", {}).items():
        optional = "" if field in needed else ", may be left out"
        lines.append(f"- `{field}`: {_kind(kind)}{optional}{_told(kind)}")
    if "enum" in schema:
        lines.append(_kind(schema))
    return "\n".join([*lines, ""])


def _told(schema: dict[str, Any]) -> str:
    return f": {schema['description']}" if "description" in schema else ""


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [f"{word} {schema[name]:,}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in schema]
    return " ".join([str(kind), *bounds])


if __name__ == "__main__":
    print(page(document(ROUTES, VERSION)), end="")
