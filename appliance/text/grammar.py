"""Grammars as values: what an answer must look like, and how parts are put together. Knows no token masks.

Grammars are written in llguidance's dialect of Lark; JSON schemas stay as they are until they are compiled.
"""

import json
from dataclasses import dataclass
from typing import Any

from appliance.errors import InvalidRequest
from appliance.text.exact_json import exact_lark
from appliance.text.json_schema import prepared_schema

# Blanks and line ends between two JSON tokens: enough for any indentation, too few to run on with.
_BLANKS = r"[\x20\x0A\x0D\x09]{1,20}"
# The name of the part that a client asked for, within a larger grammar.
ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarPart:
    """A grammar within a larger one, which calls it @name. `body` is llguidance's JSON without the name."""

    name: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A main grammar in Lark and its parts. `field` is what the client calls the source of it."""

    main: str
    parts: tuple[GrammarPart, ...] = ()
    field: str

    @property
    def source(self) -> str:
        """The whole, as llguidance reads it."""
        parts = [{"name": part.name, **json.loads(part.body)} for part in self.parts]
        return json.dumps({"grammars": [{"name": "main", "lark_grammar": self.main}, *parts]})


def json_part(
    name: str,
    schema: object,  # JSON
    *,
    field: str,
    is_strict: bool = True,
) -> GrammarPart:
    """Any JSON value that the schema allows; without `is_strict`, unknown keywords are passed over.

    Raises InvalidRequest where the schema contradicts itself.
    """
    options: dict[str, Any] = {"whitespace_pattern": _BLANKS, "lenient": not is_strict}
    prepared = prepared_schema(schema, field=field)
    if prepared.has_large_integers:
        source = exact_lark(prepared.schema, options, blanks=_BLANKS, field=field)
        return GrammarPart(name=name, body=json.dumps({"lark_grammar": source}))
    return GrammarPart(name=name, body=json.dumps({"json_schema": _with_options(prepared.schema, options)}))


def json_grammar(schema: object, *, field: str, is_strict: bool = True) -> Grammar:
    """A JSON value, and nothing after it. Raises InvalidRequest where the schema contradicts itself."""
    return _single(json_part(ANSWER, schema, field=field, is_strict=is_strict), field=field)


def regex_grammar(pattern: str, *, field: str) -> Grammar:
    """Texts that the whole of the regular expression matches."""
    from llguidance import regex_to_lark

    return lark_grammar(f"start: /{regex_to_lark(pattern)}/", field=field)


def choice_grammar(choices: list[str], *, field: str) -> Grammar:
    """One of the texts."""
    return lark_grammar("start: " + " | ".join(map(lark_text, choices)), field=field)


def lark_grammar(source: str, *, field: str) -> Grammar:
    """What a grammar in Lark allows; one in GBNF, told by its `::=`, is translated. Raises InvalidRequest."""
    if "::=" in source:
        source = _from_gbnf(source, field)
    return _single(GrammarPart(name=ANSWER, body=json.dumps({"lark_grammar": source})), field=field)


def _from_gbnf(source: str, field: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(source)
    except Exception as error:  # the translator raises whatever its parser does
        raise InvalidRequest(f"'{field}' cannot be read as GBNF: {error}", param=field) from None
    return lark


def lark_text(text: str) -> str:
    """A text as a literal of the dialect."""
    return json.dumps(text, ensure_ascii=False)


def _single(part: GrammarPart, *, field: str) -> Grammar:
    return Grammar(main=f"start: @{part.name}", parts=(part,), field=field)


def _with_options(schema: Any, options: dict[str, Any]) -> Any:  # Any: JSON
    """`true` allows everything, as the empty schema does; `false` is left for the compiler to refuse."""
    return schema if schema is False else {**({} if schema is True else schema), "x-guidance": options}
