"""The commands about models on this machine: pull, list, show, rm. Each returns an exit code.

ApplianceErrors pass through: the caller prints them and takes their exit code.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.catalog import Catalog, ModelEntry, ModelFile
    from appliance.download.local_models import LocalModel
    from appliance.download.store import ModelStore
    from appliance.quality import Quality

EXIT_DECLINED = 1
EXIT_NOT_INSTALLED = 4
# Metadata of a file may hold a whole vocabulary: what is longer is cut.
_MAX_VALUE_CHARS = 100


def configure_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="MODEL", help="catalogue name")
    parser.add_argument("--again", action="store_true", help="fetch it even if it is installed")
    _add_models_dir(parser)


def configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--installed", action="store_true", help="only what is on this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_models_dir(parser)


def configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", help="catalogue name or model file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_models_dir(parser)


def configure_remove(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="MODEL", help="catalogue name")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_models_dir(parser)


def pull(args: argparse.Namespace) -> int:
    """Install models. Raises the first failure; those before it are installed."""
    from appliance.commands.pull_display import show_progress
    from appliance.download.pull import pull as fetch

    catalog, store = _open(args)
    entries = [catalog.find(name) for name in args.names]
    for entry in entries:
        with show_progress() as report:
            path = fetch(entry, store, report, folder=catalog.folder, again=args.again)
        print(f"{entry.model_id} is installed: {path}")
    return 0


def list_models(args: argparse.Namespace) -> int:
    """Print the catalogue, what of it is installed, and the other models on this machine."""
    from appliance.download.local_models import find_local_models

    catalog, store = _open(args)
    installed = {e.model_id for e in catalog.entries if store.installed_path(e)}
    entries = [e for e in catalog.entries if e.model_id in installed or not args.installed]
    owned = {store.path(entry) for entry in catalog.entries}
    local = [model for model in find_local_models(store.models_dir) if model.path not in owned]
    if args.json:
        models = [_summary(e, is_installed=e.model_id in installed) for e in entries]
        _print_json({"models": models, "local": [_local_summary(model) for model in local]})
        return 0
    header = ("NAME", "PARAMETERS", "SIZE", "LICENCE", "INSTALLED", "VERIFIED")
    _print_table(header, [_row(e, is_installed=e.model_id in installed) for e in entries])
    if local:
        print()
        rows: list[tuple[str, ...]] = [
            (m.name, human_bytes(m.size_bytes), m.origin, _one_line(m.path)) for m in local
        ]
        _print_table(("ON THIS MACHINE", "SIZE", "FOUND IN", "PATH"), rows)
    return 0


def show(args: argparse.Namespace) -> int:
    """Print everything known of a model and, when it is on this machine, what its file says of itself."""
    from appliance.catalog import ModelFile
    from appliance.download.pull import find_model

    catalog, store = _open(args)
    found = find_model(args.name, catalog, store.models_dir)
    facts = _file_facts(found) if isinstance(found, ModelFile) else _entry_facts(found, store)
    if args.json:
        _print_json(facts)
    else:
        _print_facts(facts)
    return 0


def remove(args: argparse.Namespace) -> int:
    """Delete installed models, after asking."""
    catalog, store = _open(args)
    exit_code = 0
    for entry in [catalog.find(name) for name in args.names]:
        if not store.folder(entry).exists():
            print(f"{entry.model_id} is not installed", file=sys.stderr)
            exit_code = EXIT_NOT_INSTALLED
        elif not args.yes and not _confirmed(f"delete {store.folder(entry)}?"):
            print(f"{entry.model_id} is kept; --yes deletes without asking", file=sys.stderr)
            exit_code = EXIT_DECLINED
        else:
            print(f"{entry.model_id} is removed: {human_bytes(store.remove(entry))} freed")
    return exit_code


def human_bytes(num_bytes: int) -> str:
    """Decimal units, as disks and downloads are sold: 98 MB, 1.3 GB."""
    if num_bytes < 10**9:
        return f"{num_bytes / 10**6:.0f} MB"
    return f"{num_bytes / 10**9:.1f} GB"


def _add_models_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models-dir", metavar="DIR", help="folder of downloaded models")


def _open(args: argparse.Namespace) -> "tuple[Catalog, ModelStore]":
    from appliance import paths
    from appliance.catalog import Catalog
    from appliance.config import resolve
    from appliance.download.store import ModelStore

    flags = {"models_dir": args.models_dir} if args.models_dir else {}
    settings = resolve(flags, settings_file=paths.settings_file())
    return Catalog.load(), ModelStore(paths.models_dir(settings.models_dir), shipped=paths.shipped_model())


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _summary(entry: "ModelEntry", *, is_installed: bool) -> dict[str, object]:
    import msgspec

    built: dict[str, object] = msgspec.to_builtins(entry)
    return built | {"installed": is_installed}


def _local_summary(model: "LocalModel") -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "origin": model.origin,
        "size": model.size_bytes,
    }


def _local_row(model: "LocalModel") -> tuple[str, ...]:
    return (model.name, human_bytes(model.size_bytes), model.origin, _one_line(model.path))


def _row(entry: "ModelEntry", *, is_installed: bool) -> tuple[str, ...]:
    return (
        entry.model_id,
        _human_parameters(entry.num_parameters),
        human_bytes(entry.size_bytes),
        entry.licence,
        "yes" if is_installed else "-",
        "yes" if entry.is_verified else "-",
    )


def _human_parameters(num_parameters: int) -> str:
    if num_parameters < 950 * 10**6:
        return f"{num_parameters / 10**6:.0f}M"
    return f"{num_parameters / 10**9:.1f}B"


def _entry_facts(entry: "ModelEntry", store: "ModelStore") -> dict[str, object]:
    path, record = store.installed_path(entry), store.record(entry)
    facts = _summary(entry, is_installed=path is not None) | {"path": str(store.path(entry))}
    if path is None:
        return facts
    if record is not None:
        facts |= {"sha256": record.sha256, "pulled_from": record.source}
    return facts | _model_facts(path)


def _file_facts(found: "ModelFile") -> dict[str, object]:
    facts: dict[str, object] = {"id": found.model_id, "path": str(found.path), "installed": True}
    return facts | _model_facts(found.path)


def _model_facts(path: Path) -> dict[str, object]:
    from appliance.formats.gguf import GGUFFile
    from appliance.formats.model_file import open_model_file

    with open_model_file(path) as model:
        described = model.metadata if isinstance(model, GGUFFile) else model.config
        metadata = {key: _plain(value) for key, value in described.items()}
        types: dict[str, int] = {}
        for tensor in model.tensors.values():
            types[tensor.type.name] = types.get(tensor.type.name, 0) + 1
    facts: dict[str, object] = {"size": model.size_bytes, "tensors": types, "metadata": metadata}
    return facts | _quality_facts(path)


def _quality_facts(path: Path) -> dict[str, object]:
    from appliance.quality import read_all

    measured = {variant: _told_quality(quality) for variant, quality in read_all(path).items()}
    return {"quality": measured} if measured else {}


def _told_quality(quality: "Quality") -> dict[str, object]:
    told: dict[str, object] = {"against": quality.against}
    for name, domain in {"overall": quality.overall, **quality.domains}.items():
        told[name] = (
            f"perplexity {domain.perplexity:.2f} ({domain.perplexity_rise:+.2%}), "
            f"KL {domain.mean_kl:.4f} mean {domain.p99_kl:.4f} P99, "
            f"same best token {domain.top1_agreement:.1%}"
        )
    return told | {"past_bounds": list(quality.failures)}


def _plain(value: object) -> object:
    """A metadata value as JSON can carry it; arrays by their length, long texts cut."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MAX_VALUE_CHARS else value[:_MAX_VALUE_CHARS] + "..."
    return f"{len(value)} values" if hasattr(value, "__len__") else str(value)


def _print_json(value: object) -> None:
    # A path may hold bytes that are no text: escaped, they still make valid JSON.
    print(json.dumps(value, indent=2))


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*header, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_facts(facts: dict[str, object], indent: str = "") -> None:
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print_facts(value, indent + "  ")
        elif isinstance(value, list | tuple):
            print(f"{indent}{key}: {_joined(value)}")
        elif value is not None:
            print(f"{indent}{key}: {_one_line(value)}")


def _joined(values: Iterable[object]) -> str:
    return ", ".join(json.dumps(v) if isinstance(v, dict) else str(v) for v in values) or "none"


def _one_line(value: object) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
