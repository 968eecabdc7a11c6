"""An appliance with several models, each an engine on a scripted runner that says its own name."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.catalog import Catalog, ModelFile
from appliance.download.store import ModelStore
from appliance.errors import NotEnoughMemory
from appliance.model_library import LibraryModel, ModelLibrary
from appliance.model_pool import ModelPool, ResidentModel, Room
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState
from appliance.server.residency import Report, ResidencyRules
from engine.scripted_runner import ScriptedRunner
from formats.gguf_builder import tiny_vocabulary, write_gguf
from server.rig import EOS, TOKENIZER, make_resident

_NUM_BLOCKS, _BLOCK_SIZE = 64, 16


class Shelf:
    """The parts, for a test to turn. `num_fit` models fit into the memory that it pretends to have."""

    def __init__(self, library: ModelLibrary, rules: ResidencyRules, num_fit: int) -> None:
        self.num_fit = num_fit
        self.step_s = 0.0
        self.reply_tokens = 1
        self.loads: list[str] = []
        self.rooms: list[Room] = []
        self.open = threading.Event()  # loading ends when it is set
        self.open.set()
        self.alive: dict[str, ResidentModel] = {}
        self.library = library
        self.state = ApplianceState(pool=ModelPool(), library=library, loader=self._load, residency=rules)
        self.state.enter("ready")

    def app(self) -> ASGIApp:
        return create_app(self.state, access=AccessRules())

    def client(self) -> TestClient[ASGIApp]:
        return TestClient(self.app(), base_url="http://127.0.0.1", raise_server_exceptions=False)

    def loaded(self) -> list[str]:
        return [model.model_id for model in self.state.pool.list()]

    def _load(self, found: LibraryModel, room: Room, report: Report) -> ResidentModel:
        model_id = found.base_id
        report(f"loading {model_id}", 0.5)
        assert self.open.wait(10)
        if len(self.alive) >= self.num_fit:
            raise NotEnoughMemory(f"{model_id} does not fit; close other programs")
        self.loads.append(model_id)
        self.rooms.append(room)
        return self.resident(model_id)

    def resident(self, model_id: str) -> ResidentModel:
        runner = ScriptedRunner(
            num_blocks=_NUM_BLOCKS,
            block_size=_BLOCK_SIZE,
            vocab_size=TOKENIZER.vocab_size,
            step_s=self.step_s,
        )
        text = TOKENIZER.encode(model_id, parse_special=False) * self.reply_tokens
        runner.replies = [*text, EOS]
        _, model = make_resident(runner, _NUM_BLOCKS, model_id=model_id)
        model.engine.start()

        def close() -> None:
            assert not model.engine.num_live, "a reply was cut"
            model.engine.stop()
            del self.alive[model_id]

        self.alive[model_id] = replace(model, close=close)
        return self.alive[model_id]


@contextmanager
def make_shelf(
    *names: str, num_fit: int = 9, catalog: Catalog | None = None, aliases: Any = None, **rules: Any
) -> Iterator[Shelf]:
    """`rules` is what ResidencyRules takes."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path = write_gguf(folder / "Tiny-Q8_0.gguf", tiny_vocabulary(), {})
        library = ModelLibrary(
            catalog or Catalog((), folder=folder),
            ModelStore(folder / "models"),
            files=tuple(ModelFile(model_id=name, path=path) for name in names),
            aliases=aliases,
        )
        shelf = Shelf(library, ResidencyRules(**rules), num_fit)
        try:
            yield shelf
        finally:
            shelf.open.set()
            for model in list(shelf.alive.values()):
                model.engine.stop()
