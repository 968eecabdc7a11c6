"""A model's own recorded prompts, where an operator asked for that: local, bounded, with secrets blacked out.

One JSON object a line, oldest first. Written by a thread of its own; a slow disk costs records, not requests.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from appliance.observe.batch_worker import BatchWorker

MOST_BYTES = 4 << 20
# Of a longer prompt the first and the last part tell most: its frame, and what was asked.
_MOST_TOKENS = 2048
_MOST_QUEUED = 256
_BLACKED_OUT = "[...]"
_SECRETS = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.-]+"  # mail addresses
    r"|(?<=//)[^\s/@]+:[^\s/@]+(?=@)"  # name and password in an address
    r"|\b(?:\d[ -]?){7,}\d\b"  # card, account and telephone numbers
    r"|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{20,}\b"  # keys and tokens
)
logger = logging.getLogger(__name__)


class PromptLog:
    """Keeps the newest prompts of one model in one file that only the user reads."""

    def __init__(
        self, file: Path, decode: Callable[[Sequence[int]], str], *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._file = file
        self._decode = decode
        self._most_bytes = most_bytes
        self._worker = BatchWorker[tuple[int, ...]]("prompt-log", self._write, most_queued=_MOST_QUEUED)
        self._worker.start()

    def add(self, token_ids: Sequence[int]) -> None:
        """Keep a prompt. Any thread; never waits."""
        self._worker.add(tuple(token_ids))

    def close(self) -> None:
        self._worker.close()

    def _write(self, prompts: list[tuple[int, ...]]) -> bool:
        lines = [json.dumps({"tokens": len(p), "text": redacted(self._decode(_ends(p)))}) for p in prompts]
        try:
            self._append("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            logger.warning("prompts are no longer recorded: %s cannot be written: %s", self._file, error)
            return False
        return True

    def _append(self, added: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        old = self._file.read_bytes() if self._file.exists() else b""
        if len(old) + len(added) <= self._most_bytes:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(added)
            return
        # The older half goes, whole lines at a time.
        whole = (old + added)[-self._most_bytes // 2 :]
        part = self._file.with_suffix(".part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(whole[whole.find(b"\n") + 1 :])
        part.replace(self._file)


def redacted(text: str) -> str:
    """Return a text without what looks like an address, a number of somebody's, or a key."""
    return _SECRETS.sub(_BLACKED_OUT, text)


def read_prompts(file: Path) -> list[str]:
    """Return the recorded texts, oldest first; lines that are no records are passed over. Raises OSError."""
    texts = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(text, str) and text:
            texts.append(text)
    return texts


def _ends(token_ids: tuple[int, ...]) -> tuple[int, ...]:
    if len(token_ids) <= _MOST_TOKENS:
        return token_ids
    return token_ids[: _MOST_TOKENS // 2] + token_ids[-_MOST_TOKENS // 2 :]
