"""What was measured, by part, engine and cell; kept in one file so that parts may be run apart."""

import json
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

PARTS = ("decode", "prefill", "http", "memory", "quality")


@dataclass(slots=True)
class Part:
    """One part's samples, one a round, all of one run."""

    date: str = ""
    rounds: int = 0
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # engine -> cell -> values
    notes: list[str] = field(default_factory=list)

    def add(self, engine: str, cell: str, value: float) -> None:
        self.samples.setdefault(engine, {}).setdefault(cell, []).append(value)

    def values(self, engine: str, cell: str) -> list[float]:
        return self.samples.get(engine, {}).get(cell, [])

    def median(self, engine: str, cell: str) -> float | None:
        values = self.values(engine, cell)
        return median(values) if values else None


@dataclass(slots=True)
class Results:
    """All parts that have ever been run into this file, newest of each."""

    machine: str
    parts: dict[str, Part]

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Earlier results of this very machine, else none."""
        machine = describe_machine()
        if path.is_file():
            stored = json.loads(path.read_text())
            if stored["machine"] == machine:
                return cls(machine, {name: Part(**part) for name, part in stored["parts"].items()})
        return cls(machine, {})

    def begin(self, name: str, rounds: int) -> Part:
        part = Part(date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), rounds=rounds)
        self.parts[name] = part
        return part

    def part(self, name: str) -> Part:
        return self.parts.get(name) or Part()

    def save(self, path: Path) -> None:
        parts = {
            name: {"date": p.date, "rounds": p.rounds, "samples": p.samples, "notes": p.notes}
            for name, p in self.parts.items()
        }
        path.write_text(json.dumps({"machine": self.machine, "parts": parts}, indent=1))


def describe_machine() -> str:
    """Processor, its abilities that matter here, and memory."""
    cpu_info = Path("/proc/cpuinfo")
    if not cpu_info.is_file():
        return f"{platform.machine()}, {platform.system()}"
    lines = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in cpu_info.read_text().splitlines())
    }
    flags = lines.get("flags", "").split()
    wanted = ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimddp")
    abilities = " ".join(flag for flag in wanted if flag in flags)
    model = f"{lines.get('model name', platform.machine())} (family {lines.get('cpu family', '?')}, "
    model += f"model {lines.get('model', '?')})"
    cores = int(lines.get("processor", "0")) + 1
    return f"{model}, {cores} cores, {abilities}, {platform.system()}"
