"""A JSON schema, as far as ours use it: whether a value is what it says, and what is wrong if it is not.

Stricter than the standard in one thing: a property that the schema does not name is wrong, because it is documented by
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_KNOWN = {"type", "enum", "const", "properties", "required", "items", "$ref", "anyOf", "discriminator", "$defs"}
_KNOWN |= {"title", "description", "default"}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, at: str = "$") -> Iterator[str]:
    """Everything about `value` that is not what `schema` says."""
    root = schema if root is None else root
    assert schema.keys() <= _KNOWN, f"the schema uses more than is checked here: {sorted(schema.keys() - _KNOWN)}"
    if "$ref" in schema:
        yield from problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
        return
    if "anyOf" in schema:
        tags = schema.get("discriminator", {}).get("mapping", {})
        if isinstance(value, dict) and tags:
            if value.get(schema["discriminator"]["propertyName"]) not in tags:
                yield f"{at}: no such kind: {value}"
                return
            yield from problems(value, {"$ref": tags[value[schema["discriminator"]["propertyName"]]]}, root, at)
        elif not any(not list(problems(value, one, root, at)) for one in schema["anyOf"]):
            yield f"{at}: {value!r} is none of {schema['anyOf']}"
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{at}: expected {kind}, found {value!r}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: expected one of {schema['enum']}, found {value!r}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: expected {schema['const']!r}, found {value!r}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{at}.{name}: not in the schema" for name in value.keys() - known.keys())
        yield from (f"{at}.{name}: missing" for name in set(schema.get("required", ())) - value.keys())
        for name in value.keys() & known.keys():
            yield from problems(value[name], known[name], root, f"{at}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), root, f"{at}[{index}]")
