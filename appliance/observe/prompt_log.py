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
_MOST_TOKENS = 1024
_MOST_CHARS = 16_384  # of each part: tokens may be long, and the search below runs over all of it
_MOST_QUEUED = 256
_BLACKED_OUT = "[...]"
# Every part is bounded and begins at a border, so that no text takes more than its length to search.
_SECRETS = re.compile(
    r"(?i)\b(?:api[-_]?key|token|secret|password|passwd|authorization)[\"']?\s{0,3}[=:]\s{0,3}"
    r"[\"']?(?:bearer\s{1,3}|basic\s{1,3})?[^\s\"',}]{1,512}"  # what is called a key
    r"|\bbearer\s{1,3}[\w.~+/=-]{8,512}"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]{0,8192}"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}"  # mail addresses
    r"|(?<=//)[^\s/@:]{1,128}:[^\s/@:]{1,128}(?=@)"  # name and password in an address
    r"|(?<![\d-])\d(?:[ -]?\d){7,30}"  # card, account and telephone numbers
    # What looks like a key: long, of letters and digits.
    r"|(?<![\w+/=-])(?=[A-Za-z+/=_-]{0,64}\d)(?=[\d+/=_-]{0,64}[A-Za-z])[\w+/=-]{20,512}"
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
        lines = [json.dumps({"tokens": len(p), "text": self._kept_text(p)}) for p in prompts]
        try:
            self._append("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            logger.warning("prompts are no longer recorded: %s cannot be written: %s", self._file, error)
            return False
        return True

    def _kept_text(self, token_ids: tuple[int, ...]) -> str:
        if len(token_ids) <= 2 * _MOST_TOKENS:
            return redacted(self._decode(token_ids)[: 2 * _MOST_CHARS])
        # What the cut went through is no whole word, and no whole key that would be known for one.
        first = self._decode(token_ids[:_MOST_TOKENS])[:_MOST_CHARS].rpartition(" ")[0]
        last = self._decode(token_ids[-_MOST_TOKENS:])[-_MOST_CHARS:].partition(" ")[2]
        return f"{redacted(first)} {redacted(last)}"

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
        part = self._file.with_suffix(f".{os.getpid()}.part")
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
