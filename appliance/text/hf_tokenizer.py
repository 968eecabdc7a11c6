"""Builds the tokenizer and finds the chat template of a Hugging Face folder. Knows its files' names."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from appliance.errors import BadModelFile
from appliance.formats.hf_folder import HFFolder
from appliance.formats.json_file import Json, read_json
from appliance.text.sentencepiece import SentencePieceEncoder, SpacePrefix, TextRules, segmenter_of
from appliance.text.tokenizer import Tokenizer
from appliance.text.tokenizer_cache import read_tokenizer_json
from appliance.text.tokenizer_json import MAX_TOKENIZER_BYTES
from appliance.text.tokenizer_model import MAX_MODEL_BYTES, read_tokenizer_model
from appliance.text.vocabulary import TokenKind, Vocabulary

_CONFIG_FILE = "tokenizer_config.json"
_MAX_TEMPLATE_BYTES = 1 << 20


def tokenizer_from_folder(folder: HFFolder, cache: Path | None = None) -> Tokenizer:
    """Build a folder's tokenizer from tokenizer.json, else from tokenizer.model.

    With a `cache`, a folder, what is read of tokenizer.json is kept there for the next time.
    Raises BadModelFile where a file is missing or contradicts itself, UnsupportedModel for another kind.
    """
    config = _tokenizer_config(folder.path)
    if (folder.path / "tokenizer.json").is_file():
        return _from_json(folder, config, cache)
    if (folder.path / "tokenizer.model").is_file():
        return _from_model(folder, config)
    raise BadModelFile(
        f"the folder '{folder.path}' has neither tokenizer.json nor tokenizer.model; download one of them"
    )


def chat_template_of(folder: HFFolder) -> str:
    """Return the template's source, or "" where the folder has none. Raises BadModelFile."""
    path = folder.path / "chat_template.jinja"
    if path.is_file():
        return _read_bounded(path, _MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    for file in ("chat_template.json", _CONFIG_FILE):
        config = read_json(folder.path / file) if (folder.path / file).is_file() else {}
        source = _named_default(config.get("chat_template"))
        if source:
            return source
    return ""


def _named_default(value: Any) -> str:  # Any: JSON
    """A template, or the one named default of several, or the first."""
    if isinstance(value, list):
        templates = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = templates.get("default") or next(iter(templates.values()), "")
    return value if isinstance(value, str) else ""


def _from_json(folder: HFFolder, config: Json, cache: Path | None) -> Tokenizer:
    data = _read_bounded(folder.path / "tokenizer.json", MAX_TOKENIZER_BYTES)
    content = read_tokenizer_json(data, cache)
    texts, kinds = content.tables.texts, bytearray(content.tables.kinds)
    vocabulary = _vocabulary(
        folder, config, texts, kinds, bos=content.first_token, unknown_id=_id_of(texts, content.unknown_token)
    )
    encoder = content.encoder(vocabulary, data)
    controls = [token for token in content.added if token.is_special]
    return Tokenizer(
        vocabulary,
        encoder,
        adds_bos=_flag(config, "add_bos_token", content.first_token is not None),
        last_token_id=_id_of(texts, content.last_token),
        strips_left=frozenset(token.token_id for token in controls if token.strips_left),
        strips_right=frozenset(token.token_id for token in controls if token.strips_right),
    )


def _from_model(folder: HFFolder, config: Json) -> Tokenizer:
    model = read_tokenizer_model(_read_bounded(folder.path / "tokenizer.model", MAX_MODEL_BYTES))
    texts, kinds, scores = list(model.texts), bytearray(model.kinds), list(model.scores)
    for token_id, (text, is_special) in sorted(_later_tokens(config).items()):
        missing = token_id + 1 - len(texts)
        texts += [""] * missing
        scores += [0.0] * missing
        kinds += bytes([TokenKind.UNUSED]) * max(missing, 0)
        if kinds[token_id] != TokenKind.UNKNOWN:
            texts[token_id] = text
            kinds[token_id] = TokenKind.CONTROL if is_special else TokenKind.USER_DEFINED
    named = {"bos": model.bos_id, "eos": model.eos_id}
    ends = {key: texts[i] for key, i in named.items() if 0 <= i < len(texts)}
    vocabulary = _vocabulary(
        folder,
        config,
        tuple(texts),
        kinds,
        bos=ends.get("bos"),
        eos=ends.get("eos"),
        unknown_id=model.unknown_id if 0 <= model.unknown_id < len(texts) else None,
    )
    rules = TextRules(
        prefix=SpacePrefix.SEGMENT if model.adds_prefix else SpacePrefix.NEVER,
        removes_extra_spaces=model.removes_extra_spaces,
        cuts_at_added=model.merges,
    )
    if model.charsmap:
        rules = replace(rules, normalize=_charsmap_normalizer(model.charsmap))
    segmenter = segmenter_of(vocabulary, scores, merges=model.merges)
    encoder = SentencePieceEncoder(vocabulary, segmenter, rules)
    return Tokenizer(vocabulary, encoder, adds_bos=_flag(config, "add_bos_token", model.merges))


def _charsmap_normalizer(charsmap: bytes) -> Any:  # Any: a method of a library without types
    from tokenizers.normalizers import Precompiled

    try:
        return Precompiled(charsmap).normalize_str
    except Exception as error:  # the library raises plain Exception
        raise BadModelFile(f"'tokenizer.model': its character map cannot be read: {error!s:.100}") from error


def _later_tokens(config: Json) -> dict[int, tuple[str, bool]]:
    """Tokens that tokenizer_config.json adds: text and whether it steers, by id."""
    tokens: dict[int, tuple[str, bool]] = {}
    added = config.get("added_tokens_decoder")
    for key, token in added.items() if isinstance(added, dict) else ():
        text = token.get("content") if isinstance(token, dict) else None
        if not key.isdecimal() or int(key) >= 1 << 22 or not isinstance(text, str) or not text:
            raise BadModelFile(f"'{_CONFIG_FILE}': the added token {key!r:.40} needs an id and a content")
        tokens[int(key)] = (text, bool(token.get("special")))
    return tokens


def _vocabulary(
    folder: HFFolder,
    config: Json,
    texts: tuple[str, ...],
    kinds: bytearray,
    *,
    bos: str | None,
    eos: str | None = None,
    unknown_id: int | None = None,
) -> Vocabulary:
    """Name the tokens that begin and end: tokenizer_config.json says so by text, the other files by id."""
    sources = (folder.generation_config, folder.config)
    bos_id = _first(_id_of(texts, _text_of(config, "bos_token") or bos), *_ids(sources, "bos_token_id"))
    stops = _ids(sources, "eos_token_id")
    eos_id = _first(_id_of(texts, _text_of(config, "eos_token") or eos), *stops)
    steering = {i for i in (bos_id, eos_id, *stops) if i is not None}
    for token_id in steering:
        if token_id >= len(texts):
            raise folder.bad(f"the token id {token_id} is named and the vocabulary has {len(texts)} tokens")
        kinds[token_id] = TokenKind.CONTROL
    return Vocabulary(
        texts=texts,
        kinds=bytes(kinds),
        bos_token_id=bos_id,
        eos_token_id=eos_id,
        unknown_token_id=unknown_id,
        named_stop_ids=frozenset(i for i in (eos_id, *stops) if i is not None),
    )


def _id_of(texts: tuple[str, ...], text: str | None) -> int | None:
    """Return the first token of that text. Cheaper than a table of all texts for the few that are asked."""
    return texts.index(text) if text and text in texts else None


def _ids(sources: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    """Return the ids that the sources name, each a number or a list of them."""
    found: list[int] = []
    for source in sources:
        value = source.get(key)
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if type(item) is int and item >= 0]
    return found


def _first(*candidates: int | None) -> int | None:
    return next((candidate for candidate in candidates if candidate is not None), None)


def _text_of(config: Json, key: str) -> str | None:
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _flag(config: Json, key: str, default: bool) -> bool:
    value = config.get(key)
    return value if isinstance(value, bool) else default


def _tokenizer_config(path: Path) -> Json:
    return read_json(path / _CONFIG_FILE) if (path / _CONFIG_FILE).is_file() else {}


def _read_bounded(path: Path, limit: int) -> bytes:
    try:
        num_bytes = path.stat().st_size
        if num_bytes > limit:
            raise BadModelFile(f"'{path.name}' has {num_bytes} bytes and the limit is {limit}")
        return path.read_bytes()
    except OSError as error:
        raise BadModelFile(f"'{path}' cannot be read: {error.strerror or error}") from error
