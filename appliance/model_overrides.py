"""What the settings file says of single models: `[models."name"]`. Knows no model files."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from appliance.errors import BadSetting, UnsupportedModel
from appliance.model.config import RopeScaling
from appliance.model.rope_override import RopeOverride
from appliance.model_pool import ResidentModel
from appliance.text.chat_template import ChatTemplate

TABLE = "models"


class RopeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rope_scaling = { type = "yarn", factor = 4.0 }`: the context becomes so many times the original."""

    type: Literal["none", "linear", "llama3", "yarn"]
    factor: Annotated[float, msgspec.Meta(ge=1, le=1024)] = 1.0
    original_context: Annotated[int, msgspec.Meta(ge=16)] | None = None  # tokens

    def override(self) -> RopeOverride:
        return RopeOverride(
            scaling=RopeScaling(self.type), factor=self.factor, original_context=self.original_context
        )


class ModelOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table. `sampling` is in the names of Ollama's options: temperature, top_k, repeat_penalty."""

    alias: str | list[str] = []
    context: Annotated[int, msgspec.Meta(ge=16)] | None = None  # tokens
    rope_scaling: RopeTable | None = None
    chat_template: str | None = None  # Jinja
    system: str | None = None
    sampling: dict[str, Any] = {}  # JSON

    @property
    def rope(self) -> RopeOverride | None:
        return self.rope_scaling.override() if self.rope_scaling else None

    @property
    def aliases(self) -> list[str]:
        return [self.alias] if isinstance(self.alias, str) else self.alias

    def apply(self, model: ResidentModel) -> ResidentModel:
        """The same engine with these words. Raises UnsupportedModel for a template that is none."""
        defaults = model.defaults
        template = model.chat_template
        if self.chat_template is not None:
            tokens = model.tokenizer.bos_token, model.tokenizer.eos_token
            template = ChatTemplate(self.chat_template, *tokens)
        return replace(
            model,
            chat_template=template,
            defaults=replace(
                defaults,
                system=self.system if self.system is not None else defaults.system,
                options={**defaults.options, **self.sampling},
                settled={**defaults.settled, **self.sampling},
            ),
        )


NONE = ModelOverride()


class ModelOverrides:
    """All of them, by the model's id."""

    def __init__(self, by_id: Mapping[str, ModelOverride]) -> None:
        self._by_id = dict(by_id)

    @classmethod
    def read(cls, settings_file: Path | None) -> "ModelOverrides":
        """None where there is no file. Raises BadSetting naming the table and the field."""
        try:
            text = settings_file.read_text(encoding="utf-8") if settings_file else ""
            table = tomllib.loads(text).get(TABLE, {})
            made = cls(msgspec.convert(table, dict[str, ModelOverride]))
        except FileNotFoundError:
            return cls({})
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadSetting(f"the settings file {settings_file} cannot be read: {error}") from error
        except msgspec.ValidationError as error:
            raise BadSetting(f"[models] in {settings_file} is not valid: {error}", param=TABLE) from error
        made.aliases()
        made._check_templates()
        return made

    def _check_templates(self) -> None:
        for model_id, override in self._by_id.items():
            try:
                if override.chat_template is not None:
                    ChatTemplate(override.chat_template, "", "")
            except UnsupportedModel as error:
                raise BadSetting(
                    f'[models."{model_id}"] chat_template: {error.message}', param=TABLE
                ) from error

    def of(self, model_id: str) -> ModelOverride:
        return self._by_id.get(model_id, NONE)

    def sampling(self) -> dict[str, dict[str, Any]]:  # Any: JSON
        """Model id -> what its table settles; nobody has checked it yet."""
        return {model_id: override.sampling for model_id, override in self._by_id.items()}

    def unaliased(self, name: str) -> str:
        """The id that an alias leads to, in any case; any other name as it is."""
        return self.aliases().get(name.lower(), name)

    def aliases(self) -> dict[str, str]:
        """Alias -> model id. Raises BadSetting where two models want one."""
        found: dict[str, str] = {}
        for model_id, override in self._by_id.items():
            for alias in map(str.lower, override.aliases):
                if found.setdefault(alias, model_id) != model_id:
                    raise BadSetting(f"the alias '{alias}' names both '{found[alias]}' and '{model_id}'")
        return found
