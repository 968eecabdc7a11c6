"""Makes a client's JSON schema fit for the grammar compiler, or says why it cannot be. Knows no grammar.

The compiler refuses most of what it cannot honour. What it would get wrong in silence is settled here:
references that lead nowhere but to themselves, integers that do not survive a float, depth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from appliance.errors import InvalidRequest

# Beyond it an integer does not survive the compiler's floats.
_MAX_EXACT = 2**53 - 1
_MAX_NODES = 20_000
_MAX_DEPTH = 400  # of schemas within schemas
# The compiler reads at most 128 levels of JSON; one level of schemas takes two.
_DEPTH_BETWEEN_DEFINITIONS = 40
_ONE = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SHAPES = {**dict.fromkeys(_MAPS, Mapping), **dict.fromkeys((*_LISTS, "enum", "required"), list)}
# Said by the client for people, or for the compiler, whose options are not the client's to set.
_DROPPED = ("x-guidance",)

Schema = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSchema:
    """A schema for the compiler. `has_large_integers`: some constants must be written digit by digit."""

    schema: Any  # Any: JSON; a schema may be true or false
    has_large_integers: bool


def prepared_schema(schema: object, *, field: str) -> PreparedSchema:
    """Raises InvalidRequest naming the path of what cannot be honoured."""
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"'{field}' is not a JSON schema; send an object", param=field)
    walk = _Walk(field)
    changed = walk.changed(schema, "#", 0)
    if walk.definitions:
        changed = {**changed, "$defs": {**changed.get("$defs", {}), **walk.definitions}}
    for path, reference in walk.references:
        _check_loop(changed, path, reference, field)
    return PreparedSchema(schema=changed, has_large_integers=walk.has_large_integers)


def is_large(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) > _MAX_EXACT


def has_large(schema: object) -> bool:
    """Whether a schema holds, at any depth, a constant that does not survive a float."""
    if is_large(schema):
        return True
    if isinstance(schema, Mapping):
        return any(map(has_large, schema.values()))
    return isinstance(schema, list) and any(map(has_large, schema))


class _Walk:
    """One pass over a schema: counts, collects references, rewrites."""

    def __init__(self, field: str) -> None:
        self.definitions: dict[str, Any] = {}
        self.references: list[tuple[str, str]] = []
        self.has_large_integers = False
        self._field = field
        self._num_nodes = 0

    def changed(self, schema: Any, path: str, depth: int) -> Any:  # Any: JSON
        if not isinstance(schema, Mapping):
            return schema
        self._count(depth)
        if "$ref" in schema:
            self.references.append((path, str(schema["$ref"])))
        self._check_shapes(schema, path)
        changed = {key: value for key, value in schema.items() if key not in _DROPPED}
        self._settle_integers(changed, path)
        for key, name, child in _children(schema):
            place = f"{path}/{key}" if name is None else f"{path}/{key}/{name}"
            new = self._child(child, place, depth + 1, is_definition=key in ("$defs", "definitions"))
            if name is None:
                changed[key] = new
            elif isinstance(name, int):
                changed[key] = [*changed[key][:name], new, *changed[key][name + 1 :]]
            else:
                changed[key] = {**changed[key], name: new}
        return changed

    def _child(self, child: Any, path: str, depth: int, *, is_definition: bool) -> Any:  # Any: JSON
        new = self.changed(child, path, depth)
        if depth % _DEPTH_BETWEEN_DEFINITIONS or is_definition or not isinstance(new, dict):
            return new
        name = f"__level_{depth}_{len(self.definitions)}"
        self.definitions[name] = new
        return {"$ref": f"#/$defs/{name}"}

    def _count(self, depth: int) -> None:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise InvalidRequest(
                f"'{self._field}' has more than {_MAX_NODES} parts; send a smaller schema", param=self._field
            )
        if depth > _MAX_DEPTH:
            raise InvalidRequest(
                f"'{self._field}' is nested deeper than {_MAX_DEPTH} levels; flatten it", param=self._field
            )

    def _check_shapes(self, schema: Schema, path: str) -> None:
        for key, shape in _SHAPES.items():
            if key in schema and not isinstance(schema[key], shape):
                word = "a list" if shape is list else "an object"
                raise InvalidRequest(f"'{self._field}' at {path}/{key}: it must be {word}", param=self._field)
        if not all(isinstance(name, str) for name in schema.get("required", ())):
            raise InvalidRequest(
                f"'{self._field}' at {path}/required: it must hold the names of properties", param=self._field
            )

    def _settle_integers(self, schema: dict[str, Any], path: str) -> None:
        """Narrow bounds to what is exact; note constants that are not."""
        for key, sign in (
            ("minimum", 1),
            ("exclusiveMinimum", 1),
            ("maximum", -1),
            ("exclusiveMaximum", -1),
        ):
            bound = schema.get(key)
            if not isinstance(bound, int | float) or abs(bound) <= _MAX_EXACT:
                continue
            if bound * sign > 0:
                raise InvalidRequest(
                    f"'{self._field}' at {path}/{key}: {bound} is beyond {_MAX_EXACT}, past which numbers "
                    "are not exact; use a smaller bound",
                    param=self._field,
                )
            schema[key] = -sign * _MAX_EXACT
        if (
            is_large(schema.get("const"))
            or any(map(has_large, schema.get("enum") or ()))
            or has_large(schema.get("const"))
        ):
            self.has_large_integers = True


def _children(schema: Schema) -> Iterator[tuple[str, str | int | None, Any]]:  # Any: JSON
    for key in _ONE:
        if isinstance(schema.get(key), Mapping):
            yield key, None, schema[key]
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            for index, child in enumerate(schema[key]):
                yield key, index, child
    for key in _MAPS:
        if isinstance(schema.get(key), Mapping):
            for name, child in schema[key].items():
                yield key, name, child


def _check_loop(root: Any, path: str, reference: str, field: str) -> None:  # Any: JSON
    """Raise InvalidRequest where a reference leads through references alone back to itself."""
    seen = {reference}
    while True:
        target = _resolved(root, reference)
        if not isinstance(target, Mapping) or "$ref" not in target:
            return
        reference = str(target["$ref"])
        if reference in seen:
            raise InvalidRequest(f"'{field}' at {path}/$ref: the reference leads back to itself", param=field)
        seen.add(reference)


def _resolved(root: Any, reference: str) -> Any:  # Any: JSON
    """What a pointer within the document points at, or None; the compiler names what is missing."""
    if not reference.startswith("#"):
        return None
    target = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name)
        elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target
