"""The OpenAPI document. bae makes the document from the table of endpoints and the classes of the
graphs. Each graph has its own types of start and result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final, cast
from urllib.parse import quote

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from bae import __version__
from bae.serve.endpoints import Endpoint
from bae.serve.problems import ProblemDetails
from bae.serve.starts import Starts

_REF: Final = "#/components/schemas/{model}"
_START: Final = "/graphs/{graph}/runs"
_PROBLEM: Final = {"$ref": "#/components/schemas/ProblemDetails"}


def describe_api(
    endpoints: Iterable[Endpoint], starts: Mapping[str, Starts], root: str = ""
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of an API that is mounted at `root`."""
    table = [*endpoints]
    schemas = _collect_schemas(table)
    names = _make_unique_names(starts)
    paths: dict[str, Any] = {}
    for endpoint in table:
        if endpoint.path == _START:
            for start in starts.values():
                path = endpoint.path.replace("{graph}", quote(start.name, safe=""))
                operation = _describe_start(
                    _describe_operation(endpoint, schemas), names[start.name], start, schemas
                )
                operation["parameters"] = [p for p in operation["parameters"] if p["in"] != "path"]
                paths.setdefault(path, {})[endpoint.method.lower()] = operation
            continue
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe_operation(
            endpoint, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "bae", "version": __version__},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _collect_schemas(table: list[Endpoint]) -> dict[str, Any]:
    answers = {model for endpoint in table for model in endpoint.answers.values()}
    models = [m for m in answers if not isinstance(m, str)] + [ProblemDetails]
    inputs = [endpoint.body for endpoint in table if endpoint.body is not None]
    models_by_mode: list[tuple[type[BaseModel], Any]] = [
        (model, "serialization") for model in models
    ]
    models_by_mode += [(model, "validation") for model in inputs]
    models_by_mode.sort(key=lambda pair: pair[0].__name__)
    _, document = models_json_schema(models_by_mode, ref_template=_REF)
    return cast("dict[str, Any]", document.get("$defs", {}))


def _describe_operation(endpoint: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in endpoint.answers.items():
        response: dict[str, Any] = {"description": endpoint.about}
        if isinstance(model, str):
            if model:
                response["content"] = {model: {"schema": {}}}
        else:
            ref = {"$ref": _REF.replace("{model}", model.__name__)}
            response["content"] = {"application/json": {"schema": ref}}
            response["content"] |= {media: {"schema": {}} for media in endpoint.media}
        responses[str(status)] = response
    for status in endpoint.all_refusals:
        content = {"application/problem+json": {"schema": _PROBLEM}}
        responses[str(status)] = {"description": "Refused", "content": content}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.about,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": responses,
    }
    if endpoint.body is not None:
        ref = {"$ref": _REF.replace("{model}", endpoint.body.__name__)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": ref}},
        }
    if endpoint.takes_bytes:
        file_schema = {"type": "string", "contentMediaType": "application/octet-stream"}
        operation["requestBody"] = {
            "content": {"application/octet-stream": {"schema": file_schema}}
        }
    if endpoint.verb is None:
        operation["security"] = []
    else:
        operation["x-bae-verb"] = endpoint.verb
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    schema = endpoint.query.model_json_schema()
    # A client gives `meta.KEY`, with a key of its own, so OpenAPI cannot list the parameters.
    schema.get("properties", {}).pop("meta", None)
    return [
        {"name": name, "in": "query", "required": False, "schema": part}
        | ({"required": True} if name in schema.get("required", ()) else {})
        for name, part in schema.get("properties", {}).items()
    ]


def _make_unique_names(starts: Mapping[str, Starts]) -> dict[str, str]:
    """Return a unique name for each graph, made of letters, digits and underscores. The names of
    schemas in an OpenAPI document cannot have every character of a graph's name."""
    names: dict[str, str] = {}
    for name in starts:
        unique_name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "graph"
        base, number = unique_name, 1
        while unique_name in names.values():
            number += 1
            unique_name = f"{base}_{number}"
        names[name] = unique_name
    return names


def _describe_start(
    operation: dict[str, Any], name: str, start: Starts, schemas: dict[str, Any]
) -> dict[str, Any]:
    """Return the operation that starts one graph. The body and the result have the types of the
    graph."""
    begin = _add_schema(schemas, f"{name}_start", start.schema)
    ends = [_add_schema(schemas, f"{name}_{end}", schema) for end, schema in start.ends.items()]
    body = deepcopy(schemas["StartBody"])
    body["properties"]["start"] = begin
    view = deepcopy(schemas["RunDetails"])
    view["properties"]["result"] = {"anyOf": [*ends, {"type": "null"}]}
    view["properties"]["end"] = {"enum": [*start.ends, None]}
    content = operation["requestBody"]["content"]["application/json"]
    content["schema"] = _add_schema(schemas, f"{name}_run", body)
    result = _add_schema(schemas, f"{name}_result", view)
    for status in ("200", "201", "202"):
        operation["responses"][status]["content"]["application/json"]["schema"] = result
    operation["operationId"] = f"start_{name}"
    operation["summary"] = f"Start a run of {start.name}."
    if start.about:
        operation["description"] = start.about
    return operation


def _add_schema(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Add a schema and its definitions to the components, and return a reference to the schema. The
    name becomes the schema's title, because generators of clients make class names from titles."""
    inner: dict[str, Any] = schema.get("$defs", {})
    for definition, part in inner.items():
        schemas[f"{name}_{definition}"] = {
            **_move_refs(part, name),
            "title": f"{name}_{definition}",
        }
    main_schema = {key: value for key, value in schema.items() if key != "$defs"}
    schemas[name] = {**_move_refs(main_schema, name), "title": name}
    return {"$ref": _REF.replace("{model}", name)}


def _move_refs(part: Any, name: str) -> Any:
    if isinstance(part, dict):
        moved = {k: _move_refs(v, name) for k, v in cast("dict[str, Any]", part).items()}
        mapping = moved.get("mapping")  # a discriminator has references here
        for refs in (moved, cast("dict[str, Any]", mapping if isinstance(mapping, dict) else {})):
            for key, ref in refs.items():
                is_ref = key == "$ref" or refs is mapping
                if is_ref and isinstance(ref, str) and ref.startswith("#/$defs/"):
                    inside = ref.removeprefix("#/$defs/")
                    refs[key] = _REF.replace("{model}", f"{name}_{inside}")
        return moved
    if isinstance(part, list):
        return [_move_refs(item, name) for item in cast("list[Any]", part)]
    return part
