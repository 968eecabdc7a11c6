"""The chat loop of `appliance run` without a prompt: reads a line, streams an answer, remembers both.

Knows neither engine nor HTTP: whoever answers is given.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

Message = dict[str, str]
# Yields an answer's pieces to a conversation; closing it ends the answer.
Speaker = Callable[[Sequence[Message]], Iterator[str]]
HELP = "/clear forgets the conversation, /bye ends (or Ctrl-D), Ctrl-C stops an answer"
_PROMPT = ">>> "


class Chat:
    """One conversation at a terminal, or line by line from a pipe."""

    def __init__(self, speaker: Speaker, *, system: str | None, is_terminal: bool) -> None:
        self._speaker = speaker
        self._first: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._first)
        self._is_terminal = is_terminal

    def run(self) -> int:
        """Return 0 at the end of the input. Raises what the speaker raises."""
        if self._is_terminal:
            _write(f"{HELP}\n")
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/bye" | "/exit":
                    break
                case "/clear":
                    self._messages = list(self._first)
                case "/?" | "/help":
                    _write(f"{HELP}\n")
                case text:
                    self._answer(text)
        return 0

    def _answer(self, text: str) -> None:
        question = {"role": "user", "content": text}
        pieces: list[str] = []
        answer = self._speaker([*self._messages, question])
        try:
            for piece in answer:
                pieces.append(piece)
                _write(piece)
        except KeyboardInterrupt:
            _write(" ...")
        finally:
            if hasattr(answer, "close"):
                answer.close()
        _write("\n")
        self._messages += [question, {"role": "assistant", "content": "".join(pieces)}]

    def _read(self) -> str | None:
        """The next line; None at the end, or on Ctrl-C at the prompt."""
        if self._is_terminal:
            try:
                return input(_PROMPT)
            except (EOFError, KeyboardInterrupt):
                _write("\n")
                return None
        return sys.stdin.readline() or None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
