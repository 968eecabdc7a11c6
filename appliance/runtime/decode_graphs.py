"""Decode steps recorded once per number of sequences, and run again. Knows no device's graphs."""

import bisect
from collections.abc import Callable

import torch

from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.decode_buffers import DecodeBuffers
from appliance.runtime.graph_capture import GraphCapture, Replay

Forward = Callable[[ForwardInputs], ForwardOutputs]


def decode_buckets(max_sequences: int) -> tuple[int, ...]:
    """Numbers of sequences that get a recording: 1, 2, 4, 8 and every eighth from there, and the limit.

    A step runs in the next larger one, so that from 8 on fewer than 8 rows are padding.
    """
    wanted = (1, 2, 4, *range(8, max_sequences, 8), max_sequences)
    return tuple(sorted({size for size in wanted if size <= max_sequences}))


class DecodeGraphs:
    """Runs decode steps by recordings of `forward`. Its outputs last until the next step."""

    def __init__(self, forward: Forward, buffers: DecodeBuffers, capture: GraphCapture) -> None:
        self._buffers = buffers
        self._buckets = decode_buckets(buffers.max_sequences)
        # Largest first: what it needs on the way then holds what each smaller one needs.
        self._replays = {
            bucket: _record(forward, buffers, bucket, capture) for bucket in reversed(self._buckets)
        }

    def run(self, inputs: ForwardInputs, token_ids: torch.Tensor | None = None) -> ForwardOutputs | None:
        """Run a step that lies in main memory; None where no recording is of its kind or size.

        `token_ids`, on the device, replace the inputs' own.
        """
        if not inputs.is_decode or not self._buffers.fits(inputs):
            return None
        num_sequences = inputs.ragged.num_sequences
        bucket = self._buckets[bisect.bisect_left(self._buckets, num_sequences)]
        self._buffers.fill(inputs, bucket, token_ids)
        self._replays[bucket].run()
        return self._buffers.outputs(num_sequences)


def _record(forward: Forward, buffers: DecodeBuffers, bucket: int, capture: GraphCapture) -> Replay:
    inputs = buffers.inputs(bucket)
    return capture.capture(lambda: buffers.keep(forward(inputs), bucket))
