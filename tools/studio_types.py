"""Writes the types of the API for the page of the studio: studio/src/api/types.ts.

They come from the OpenAPI document, so that page and server cannot disagree. The file has the types
that the page imports, and those inside them. `--check` writes nothing, and fails where it differs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bae.journal import MemoryJournal
from bae.serve import API, public, router
from bae.serve.studio import Studio
from bae.serve.studio_login import Logins
from bae.serve.studio_page import StudioPage
from bae.team import TeamJobs, add_team_jobs, add_teams

SOURCES: Final = Path(__file__).parent.parent / "studio" / "src"
TARGET: Final = SOURCES / "api" / "types.ts"
HEAD: Final = """\
// Written by tools/studio_types.py. Do not edit. The OpenAPI document describes the types.
"""
_IMPORT: Final = re.compile(r'import type \{([^}]*)\} from "[./]*(?:/api)?/types\.ts"')
_REF: Final = "#/components/schemas/"
_PLAIN: Final = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def type_of(schema: dict[str, Any]) -> str:
    """Return a JSON schema as a type of TypeScript."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(map(type_of, schema[several])))
    if "allOf" in schema:
        return " & ".join(dict.fromkeys(map(type_of, schema["allOf"])))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(type_of, schema['prefixItems']))}]"
        case "array":
            return f"({type_of(schema.get('items', {}))})[]"
        case "object" if "properties" in schema:
            return "{\n" + members(schema, is_sent=False) + "}"
        case "object":
            values = schema.get("additionalProperties")
            type_name = type_of(values) if isinstance(values, dict) else "unknown"
            return f"Record<string, {type_name}>"
        case str() as kind if kind in _PLAIN:
            return _PLAIN[kind]
        case _:
            return "unknown"


def members(schema: dict[str, Any], *, is_sent: bool) -> str:
    """Return the members of an interface. A server sends all of them; a client may leave some
    out."""
    required = set(schema.get("required", ()))
    lines: list[str] = []
    for name, part in schema.get("properties", {}).items():
        mark = "?" if is_sent and name not in required else ""
        lines.append(f"  {json.dumps(name)}{mark}: {type_of(part)};\n")
    return "".join(lines)


def list_request_schemas(document: dict[str, Any]) -> set[str]:
    """Return the schemas of request bodies, and the schemas inside them."""
    operations = [definition for path in document["paths"].values() for definition in path.values()]
    bodies = [
        operation.get("requestBody") for operation in operations if isinstance(operation, dict)
    ]
    return schemas_inside(document, bodies)


def list_page_imports() -> set[str]:
    """Return the names of the types that the sources of the page import."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.ts*"))
    lists = (match for text in texts for match in _IMPORT.findall(text))
    return {name for names in lists for name in re.findall(r"\w+", names)}


def schemas_inside(document: dict[str, Any], parts: list[Any]) -> set[str]:
    """Return the names of the schemas that parts of the document refer to, directly or not."""
    schemas = document["components"]["schemas"]
    names: set[str] = set()
    queue = [*parts]
    while queue:
        part = queue.pop()
        if isinstance(part, list):
            queue.extend(part)
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix(_REF)
            if name and name not in names:
                names.add(name)
                queue.append(schemas[name])
            queue.extend(part.values())
    return names


def write_types(document: dict[str, Any]) -> str:
    """Return the content of the file of types."""
    parts, sent = [HEAD], list_request_schemas(document)
    schemas = document["components"]["schemas"]
    imported = [{"$ref": _REF + name} for name in list_page_imports() if name in schemas]
    for name in sorted(schemas_inside(document, imported)):
        schema = schemas[name]
        if schema.get("type") == "object" and "properties" in schema:
            body = members(schema, is_sent=name in sent)
            parts.append(f"\nexport interface {name} {{\n{body}}}\n")
        else:
            parts.append(f"\nexport type {name} = {type_of(schema)};\n")
    return "".join(parts)


def make_api() -> API:
    """Return an API with every endpoint that the page uses, and without graphs."""
    api = router({}, journal=MemoryJournal(), auth=public())
    add_teams(api, {})
    add_team_jobs(api, {}, TeamJobs())
    with Logins(None) as logins, tempfile.TemporaryDirectory() as folder:
        Path(folder, "index.html").touch()
        Studio(api, logins, StudioPage(Path(folder)), journal="", serve_command="")
    return api


def main() -> int:
    """Write the file, or compare it."""
    text = write_types(json.loads(make_api().document()))
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} differs from the API: python tools/studio_types.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
