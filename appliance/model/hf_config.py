"""Typed reads of a Hugging Face config.json, and the shape that most of them share. Opens no file."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.errors import BadModelFile, UnsupportedModel


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The object of a config.json or one inside it; a null counts as missing. Errors name the key.

    Raises BadModelFile where a value is missing with no default, or of another type.
    """

    values: Mapping[str, object]

    def with_defaults(self, defaults: Mapping[str, object]) -> "HFConfig":
        """The same with values for keys that are missing: what the architecture's own config takes then."""
        return HFConfig({**defaults, **{k: v for k, v in self.values.items() if v is not None}})

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mistyped(key, value, "an integer")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(key, value, "a number")
        return float(value)

    def get_optional_float(self, key: str) -> float | None:
        return self.get_float(key) if self.has(key) else None

    def get_bool(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "true or false")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._mistyped(key, value, "a text")
        return value

    def get_object(self, key: str) -> "HFConfig | None":
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._mistyped(key, value, "an object")
        return HFConfig(value)

    def get_list(self, key: str) -> tuple[object, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self._mistyped(key, value, "a list")
        return tuple(value)

    def get_floats(self, key: str) -> tuple[float, ...]:
        numbers = [
            v for v in self.get_list(key) or () if isinstance(v, int | float) and not isinstance(v, bool)
        ]
        if len(numbers) != len(self.get_list(key) or ()) or not numbers:
            raise self._mistyped(key, self.values.get(key), "a list of numbers")
        return tuple(float(number) for number in numbers)

    def _present(self, key: str, default: object) -> object:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise BadModelFile(f"config.json: the key '{key}' is missing")
        return value

    def _mistyped(self, key: str, value: object, expected: str) -> BadModelFile:
        return BadModelFile(f"config.json: the key '{key}' is {value!r:.80} and must be {expected}")


def require_value(config: HFConfig, key: str, default: str, known: str) -> None:
    """Raise UnsupportedModel where a text is not the one value that the architecture is run with."""
    found = config.get_str(key, default)
    if found != known:
        raise UnsupportedModel(f"config.json: '{key}' is '{found}' and this version runs '{known}'")
