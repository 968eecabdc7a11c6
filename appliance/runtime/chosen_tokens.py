"""The tokens that a step chose: on its device for the next step, and on their way to main memory."""

from collections.abc import Sequence

import torch

from appliance.runtime.on_device import to_device


class ChosenTokens:
    """One token of each row. Made right behind the step on the device's stream, it waits for nothing.

    `read` waits for this step alone, though others may have been started since.
    """

    def __init__(self, ids_R: torch.Tensor) -> None:
        self._ids = ids_R  # int64 (R), where the logits are
        self._host: torch.Tensor | None = None
        self._arrival: torch.cuda.Event | None = None
        if ids_R.device.type == "cuda":
            self._host = torch.empty(ids_R.shape, dtype=ids_R.dtype, pin_memory=True)
            self._host.copy_(ids_R, non_blocking=True)
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record(torch.cuda.current_stream(ids_R.device))

    def read(self) -> list[int]:
        """Wait until the device has chosen, and return the tokens."""
        if self._arrival is None or self._host is None:
            return list(map(int, self._ids.tolist()))
        self._arrival.synchronize()
        return list(map(int, self._host.tolist()))

    def on_device(self, rows: Sequence[int]) -> torch.Tensor:
        """Tokens of some rows for a next step, int64. A row that failed has token 0: it has no next one."""
        ids_R = self._ids
        if list(rows) != list(range(len(ids_R))):
            ids_R = ids_R[to_device(list(rows), torch.int64, ids_R.device)]
        return ids_R.clamp(min=0)
