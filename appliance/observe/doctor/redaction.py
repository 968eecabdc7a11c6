"""Takes out of a text what is nobody else's business: keys, prompts, who the user is. Knows no file."""

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HIDDEN = "[hidden]"
# Keys as they are commonly written, whoever gave them out.
_KEYS = re.compile(
    r"(?i)\b(?:bearer\s+[\w.~+/=-]+|(?:sk|hf|pk|ghp|xox[bp])[-_][\w-]{8,})"
    r"|(?:api[-_]?key|token|secret|password|authorization)[\"']?\s*[=:]\s*[\"']?(?:bearer\s+)?[^\s\"',}]+"
)
# A shorter one would hit half the text.
_LEAST_SECRET = 4
# Fields of requests that hold what people wrote.
_WORDS = re.compile(r"(?i)[\"'](?:prompt|messages|content|input|system|text|suffix|template)[\"']\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """`secrets` are hidden wherever they stand; the home folder becomes ~."""

    home: str
    user: str
    machine: str
    secrets: tuple[str, ...] = ()

    def apply(self, text: str) -> str:
        """Return the text without them; a line that holds a prompt goes altogether."""
        return "\n".join(self._line(line) for line in text.split("\n"))

    def _line(self, line: str) -> str:
        if _WORDS.search(line):
            return "[a line with a request's words is left out]"
        for secret in sorted(self.secrets, key=len, reverse=True):
            line = line.replace(secret, HIDDEN)
        line = _KEYS.sub(HIDDEN, line)
        line = _path(self.home).sub("~", line) if len(self.home) > 1 else line
        for name, word in ((self.user, "user"), (self.machine, "machine")):
            if len(name) > 2:  # "a" would hit half the text
                line = re.sub(rf"\b{re.escape(name)}\b", f"[{word}]", line)
        return line


def of_this_user(secrets: Iterable[str]) -> Redaction:
    """Return what hides the present user, home folder and machine."""
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, KeyError, OSError):  # no home, no account entry
        home, user = "", ""
    # "root" says nothing of anybody and stands in many messages.
    user = "" if user == "root" else user
    machine = socket.gethostname()
    return Redaction(
        home=home, user=user, machine=machine, secrets=tuple(s for s in secrets if len(s) >= _LEAST_SECRET)
    )


def _path(home: str) -> re.Pattern[str]:
    return re.compile(re.escape(home) + r"(?=[/\\\s:;,'\"\])]|$)")
