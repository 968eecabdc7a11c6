"""The worker's side of a pipe: one JSON command a line in, one JSON answer a line out. Standard library only.

Runs in the environments of the peers too, so it imports nothing of ours.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping


def serve(handlers: Mapping[str, Callable[..., object]]) -> None:
    """Answer commands until the pipe closes. Whatever else the process prints goes to its log."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _send(answers, {"result": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            _send(answers, {"result": handlers[name](**command)})
        except Exception as error:  # whoever gave the command hears what any engine raised
            traceback.print_exc()
            _send(answers, {"error": f"{type(error).__name__}: {error}"})


def _send(answers: object, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")  # type: ignore[attr-defined]
