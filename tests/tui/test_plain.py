from tui.plain import plain_lines
from tui.targets import Targets


def test_sentences_tell_every_figure_with_its_unit(snapshots) -> None:
    lines = plain_lines(snapshots.busy(has_gpu=True), Targets(tpot_s=0.04))
    assert lines[0] == "Alarm: TPOT P95 42.6 ms, over 40 ms"
    text = "\n".join(lines)
    for fact in (
        "State: ready, up 1h 00m",
        "Model: SmolLM2-135M-Instruct, weights int8-mixed, KV int8, eager on cpu, context 8,192 tokens",
        "Requests: 32 running, 8 waiting, 12034 finished, 107 aborted, 41 failed, 205 rejected, 113 pre",
        "Time to first token: P50 142 ms, P95 426 ms, P99 994 ms, over 124 requests",
        "KV pool: 63% used, 645 of 1024 blocks of 16 tokens",
        "KV prefix hits: not measured yet",
        "Memory: 3.00 GiB of 16.0 GiB used by the appliance",
        "GPU NVIDIA H200: 61.0 GiB of 139 GiB used, 87% busy",
    ):
        assert fact in text
    assert text.isascii()


def test_a_loading_appliance_has_no_figures_to_tell(snapshots) -> None:
    lines = plain_lines(snapshots.loading())
    assert lines[0] == "State: loading, reading layer 12 of 30, 42% done, up 3.2 s"
    assert lines[1] == "Model: none loaded"
