"""A grammar for schemas whose constants do not survive the compiler's floats. Knows plain objects only.

Such a constant (an integer beyond 2**53) is written digit by digit. The way to it leads through objects whose
properties are all required; whatever else the schema holds is left to the compiler.
"""

import json
from collections.abc import Mapping
from typing import Any

from appliance.errors import InvalidRequest
from appliance.text.json_schema import has_large


def exact_lark(schema: Any, options: Mapping[str, Any], *, blanks: str, field: str) -> str:  # Any: JSON
    """Return the grammar in Lark. Raises InvalidRequest where the constant lies in something else."""
    writer = _Writer(schema, options, field)
    start = writer.rule(schema, "#")
    return "\n".join([f"start: {start}", *writer.rules, f"blanks: BLANKS?\nBLANKS: /{blanks}/"])


class _Writer:
    def __init__(self, root: Any, options: Mapping[str, Any], field: str) -> None:  # Any: JSON
        self.rules: list[str] = []
        self._definitions = {
            key: root[key] for key in ("$defs", "definitions") if isinstance(root, Mapping) and key in root
        }
        self._options = options
        self._field = field

    def rule(self, schema: Any, path: str) -> str:  # Any: JSON
        """Add what the schema needs; return the name of its rule."""
        name = f"value_{len(self.rules)}"
        self.rules.append("")
        place = len(self.rules) - 1
        self.rules[place] = f"{name}: {self._body(schema, path)}"
        return name

    def _body(self, schema: Any, path: str) -> str:  # Any: JSON
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping):
            raise self._refusal(path)
        inner = {key: value for key, value in schema.items() if key not in self._definitions}
        if not has_large(inner):
            return "%json " + json.dumps({**schema, **self._definitions, "x-guidance": dict(self._options)})
        if "const" in schema:
            return _text(schema["const"])
        if "enum" in schema:
            return " | ".join(map(_text, schema["enum"]))
        if "properties" in schema:
            return self._object(schema, path)
        raise self._refusal(path)

    def _object(self, schema: Mapping[str, Any], path: str) -> str:
        properties = schema["properties"]
        if set(properties) - set(schema.get("required") or ()):
            raise self._refusal(path)
        members = [
            f"{_text(name)} blanks {_text_of(':')} blanks {self.rule(child, f'{path}/properties/{name}')}"
            for name, child in properties.items()
        ]
        between = f" blanks {_text_of(',')} blanks "
        return f"{_text_of('{')} blanks {between.join(members)} blanks {_text_of('}')}"

    def _refusal(self, path: str) -> InvalidRequest:
        return InvalidRequest(
            f"'{self._field}' at {path}: integers beyond 2**53 are honoured as constants of required "
            "properties only; require the property, or use smaller numbers",
            param=self._field,
        )


def _text(value: Any) -> str:  # Any: JSON
    """The JSON of a value as a literal of Lark."""
    return _text_of(json.dumps(value, ensure_ascii=False))


def _text_of(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
