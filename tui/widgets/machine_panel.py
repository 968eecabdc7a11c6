"""What the process takes of the machine: memory, cores, and of a GPU where there is one."""

from textual.content import Content

from appliance.server.schemas import GpuSnapshot, MemorySnapshot, SystemSnapshot
from tui.drawing import gauge, severity
from tui.figures import GAP, byte_count, byte_share
from tui.frame import Frame
from tui.widgets.panel import Panel

_FIGURE_WIDTH = 13


class MachinePanel(Panel):
    """One gauge a line. Where the lines do not suffice, `terse_facts` has the rest."""

    def on_mount(self) -> None:
        """Shown only where the panel has a border of its own."""
        self.border_title = "Machine"

    def lines(self) -> list[Content]:
        """Memory first, then the GPU's memory, then how busy both are."""
        width, height = self.content_size
        snapshot = self.frame.snapshot
        if snapshot is None:
            return [gauge("RAM", [], None, f"{GAP:<{_FIGURE_WIDTH}}", width)]
        rows = [_memory_gauge(snapshot.memory, width)]
        rows += [
            _vram_gauge(gpu, width, _gpu_label("VRAM", index)) for index, gpu in enumerate(snapshot.gpus)
        ]
        rows.append(_cpu_gauge(snapshot, width))
        rows += [_gpu_gauge(gpu, width, _gpu_label("GPU", index)) for index, gpu in enumerate(snapshot.gpus)]
        facts = _memory_facts(snapshot)
        spacer = [Content("")] if len(rows) + len(facts) < height else []
        return [*rows, *spacer, *facts]


def terse_facts(frame: Frame) -> str:
    """How busy the GPU machine is, in one short line for a border: `CPU 187% · GPU 87% · 64 °C`."""
    snapshot = frame.snapshot
    if snapshot is None or not snapshot.gpus:
        return ""
    gpu = snapshot.gpus[0]
    facts = [
        f"CPU {snapshot.cpu_percent:.0f}%" if snapshot.cpu_percent is not None else "",
        f"GPU {gpu.utilization_percent:.0f}%" if gpu.utilization_percent is not None else "",
        f"{gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _gpu_label(name: str, index: int) -> str:
    return name if index == 0 else f"{name[:3]}{index}"


def _memory_gauge(memory: MemorySnapshot | None, width: int) -> Content:
    if memory is None:
        return gauge("RAM", [], None, f"{GAP:<{_FIGURE_WIDTH}}", width)
    share = memory.process_resident_bytes / max(memory.limit_bytes, 1)
    figure = byte_share(memory.process_resident_bytes, memory.limit_bytes)
    return gauge("RAM", [(share, severity(share, warn_at=0.85, bad_at=0.95))], share, figure, width)


def _vram_gauge(gpu: GpuSnapshot, width: int, label: str) -> Content:
    share = gpu.memory_used_bytes / max(gpu.memory_total_bytes, 1)
    figure = byte_share(gpu.memory_used_bytes, gpu.memory_total_bytes)
    return gauge(label, [(share, severity(share, warn_at=0.95, bad_at=0.99))], share, figure, width)


def _cpu_gauge(snapshot: SystemSnapshot, width: int) -> Content:
    """The bar is full when all the threads the engine was given are busy; 100% is one core."""
    num_threads = max(snapshot.model.num_threads, 1) if snapshot.model else 1
    threads = f"{num_threads} thread{'s' if num_threads != 1 else ''}" if snapshot.model else ""
    figure = f"{threads:<{_FIGURE_WIDTH}}"
    if snapshot.cpu_percent is None:
        return gauge("CPU", [], None, figure, width)
    cores = snapshot.cpu_percent / 100
    return gauge("CPU", [(cores / num_threads, "$used")], cores, figure, width)


def _gpu_gauge(gpu: GpuSnapshot, width: int, label: str) -> Content:
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
    figure = f"{heat:<{_FIGURE_WIDTH}}"
    share = None if gpu.utilization_percent is None else gpu.utilization_percent / 100
    row = gauge(label, [(share or 0.0, "$used")], share, figure, width)
    return row if gpu.temperature_c is None else row.stylize(_heat_role(gpu.temperature_c), -_FIGURE_WIDTH)


def _heat_role(temperature_c: float) -> str:
    """Cards slow themselves down from about 87 °C."""
    if temperature_c >= 92:
        return "$bad"
    return "$warn" if temperature_c >= 85 else "$ink"


def _memory_facts(snapshot: SystemSnapshot) -> list[Content]:
    """For the lines that are left, the most telling first."""
    sizes = [
        ("free", snapshot.memory.available_bytes if snapshot.memory else None),
        ("weights", snapshot.model.weights_bytes if snapshot.model else None),
        ("KV pool", snapshot.kv.pool_bytes if snapshot.kv else None),
    ]
    return [
        Content.assemble((f"     {name:<8}", "$dim"), (byte_count(size), "$ink"))
        for name, size in sizes
        if size
    ]
