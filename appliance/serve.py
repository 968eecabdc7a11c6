"""The composition root: settings -> address -> HTTP server -> model -> engine. Alone knows everything.

The address is taken and `/health` answers before anything heavy is imported; the model loads in a thread of
its own.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from appliance import __version__, paths
from appliance.api_keys import KeyFile, KeyRing
from appliance.catalog import Catalog, ModelFile
from appliance.config import Settings
from appliance.download.pull import ensure_model
from appliance.download.store import ModelStore
from appliance.download.workspace import PullPhase, PullProgress
from appliance.errors import ApplianceError, BadSetting, InvalidRequest
from appliance.log_ring import LogRing
from appliance.model.rope_override import RopeOverride
from appliance.model_library import LibraryModel, ModelLibrary
from appliance.model_overrides import ModelOverrides
from appliance.model_pool import ModelPool, ResidentModel, Room
from appliance.observe.history import RequestHistory
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState, ServerLimits
from appliance.server.certificate import Certificate
from appliance.server.cross_origin import OriginRules
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from appliance.server.ollama_options import OPTION_NAMES, checked_options, keep_alive_s
from appliance.server.residency import FOREVER_S, Report, ResidencyRules
from appliance.server.security import allowed_names, check_exposure, is_loopback

if TYPE_CHECKING:
    from appliance.observe.trace_export import TraceExporter

# Ctrl-C: running answers may finish for so long.
DRAIN_S = 5.0
logger = logging.getLogger(__name__)


class Appliance:
    """One running appliance. Made by `open_appliance`; also what the dashboard's quit keys act on."""

    def __init__(
        self,
        settings: Settings,
        state: ApplianceState,
        http_server: HttpServer,
        overrides: ModelOverrides,
        history: RequestHistory,
        traces: "TraceExporter | None" = None,
    ) -> None:
        self._settings = settings
        self._history = history
        self._traces = traces
        self._overrides = overrides
        self._state = state
        self._http = http_server
        self._drained = threading.Event()
        self._drain_lock = threading.Lock()
        self._drain_thread: threading.Thread | None = None
        self.failure: ApplianceError | None = None
        self.loaded = threading.Event()  # set once loading ended, well or not

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def model_id(self) -> str | None:
        model = self._state.first_model()
        return model.model_id if model else None

    def start(self) -> None:
        """Answer HTTP at once and load the model in the background."""
        self._log_to(self._state.log_ring)
        self._http.start()
        self._history.start()
        if self._traces is not None:
            self._traces.start()
        threading.Thread(target=self._load, name="loader", daemon=True).start()

    def drain(self) -> None:
        """Take no new requests, let running ones finish for DRAIN_S, then end. Returns at once."""
        with self._drain_lock:
            if self._drain_thread is None:
                self._drain_thread = threading.Thread(target=self._drain, name="drain", daemon=True)
                self._drain_thread.start()

    def is_drained(self) -> bool:
        return self._drained.is_set()

    def wait_drained(self, timeout_s: float) -> bool:
        return self._drained.wait(timeout_s)

    def stop(self) -> None:
        """End everything now."""
        self._http.stop(0.0)
        self._drained.set()

    def _drain(self) -> None:
        logger.info(
            "stopping: running answers have %.0f s to finish; interrupt again to stop at once", DRAIN_S
        )
        self._http.stop(DRAIN_S)
        self._state.pool.close()
        self._history.close()
        if self._traces is not None:
            self._traces.close()
        self._drained.set()
        if self._state.log_ring is not None:
            logging.getLogger().removeHandler(self._state.log_ring)

    def _log_to(self, ring: LogRing | None) -> None:
        """By now the log is configured: that replaces every handler."""
        if ring is not None:
            logging.getLogger().addHandler(ring)

    def _load(self) -> None:
        try:
            self._load_into_pool()
        except ApplianceError as error:
            self._fail(error)
        except Exception as error:  # the outermost frame of this thread: nobody else would say it
            logger.exception("loading failed")
            self._fail(ApplianceError(f"loading failed: {type(error).__name__}: {error}"))
        finally:
            self.loaded.set()

    def _load_into_pool(self) -> None:
        state, settings = self._state, self._settings
        state.enter("loading", f"looking for {settings.model}")
        # It takes a moment, and needs nobody's lock: begin before the file is at hand.
        from appliance.loader import load_model

        names = [settings.model, *pinned_names(settings)]
        names = list(map(self._overrides.unaliased, names))
        found = [self._find(replace(settings, model=name)) for name in names]
        for place, file in enumerate(found):
            others = found[place + 1 :]
            room = Room(
                promised_bytes=state.pool.untouched_bytes() + sum(map(_size_of, others)),
                num_sharing=1 + len(others),
            )
            model = load_file(load_model, settings, self._overrides, file, room, self._report_loading)
            # What the operator named first stays only until another needs its place.
            state.pool.add(model, is_pinned=place > 0)
            self._http.call(partial(state.residency.begin, model.model_id))
        state.enter("ready")

    def _find(self, settings: Settings) -> ModelFile:
        state = self._state
        found = find_model(settings, lambda text, share: state.enter("loading", text, progress=share))
        if state.library is not None:
            state.library.add_file(found)
        return found

    def _report_loading(self, text: str, share: float | None) -> None:
        phase = "warming" if text.startswith("warming") else "loading"
        self._state.enter(phase, text, progress=share)  # type: ignore[arg-type]

    def _fail(self, error: ApplianceError) -> None:
        self.failure = error
        logger.error("%s", error.message)
        self._state.enter("failed", error.message)


def open_appliance(settings: Settings, overrides: ModelOverrides | None = None) -> Appliance:
    """Take the address and build an appliance on it. Raises PortTaken or BadSetting before anything loads."""
    overrides = overrides or ModelOverrides({})
    _check_sampling(overrides)
    certificate = Certificate.from_settings(settings.tls_cert, settings.tls_key)
    access = _access_rules(settings)
    hosts = allowed_names(settings.allowed_hosts)
    origins = OriginRules.from_text(settings.allowed_origins)
    traces = _trace_exporter(settings)
    listeners = _bind_all(settings)
    state = ApplianceState(
        pool=ModelPool(),
        limits=ServerLimits.from_settings(settings),
        library=ModelLibrary(
            Catalog.load(),
            ModelStore(paths.models_dir(settings.models_dir), shipped=paths.shipped_model()),
            aliases=overrides.aliases(),
        ),
        loader=lambda model, room, report: _load_again(settings, overrides, model, room, report),
        residency=_residency_rules(settings),
        log_ring=LogRing(),
    )
    history = RequestHistory(paths.state_dir() / "requests.sqlite")
    state.latency.requests.on_add = history.add
    app = create_app(
        state,
        access=access,
        hosts=hosts,
        origins=origins,
        history=history,
        finished=traces.finished if traces else None,
    )
    server = HttpServer(app, *listeners, state=state, certificate=certificate)
    return Appliance(settings, state, server, overrides, history, traces)


def _check_sampling(overrides: ModelOverrides) -> None:
    """Raise BadSetting now, not at the first request."""
    for model_id, sampling in overrides.sampling().items():
        place = f'[models."{model_id}"] sampling'
        if unknown := sampling.keys() - set(OPTION_NAMES):
            raise BadSetting(
                f"{place} has '{min(unknown)}'; the options are {', '.join(OPTION_NAMES)}", param="models"
            )
        try:
            checked_options(sampling, field="sampling")
        except InvalidRequest as error:
            raise BadSetting(f"{place}: {error.message}", param="models") from error


def _trace_exporter(settings: Settings) -> "TraceExporter | None":
    """None where no collector is named. Raises BadSetting."""
    if settings.otlp_endpoint is None:
        return None
    # Its HTTP client takes a tenth of a second to import.
    from appliance.observe.trace_export import TraceExporter, read_headers, traces_url

    return TraceExporter(
        traces_url(settings.otlp_endpoint),
        share=settings.trace_share,
        headers=read_headers(settings.otlp_headers),
        resource={"service.name": "inference-appliance", "service.version": __version__},
        version=__version__,
    )


def _access_rules(settings: Settings) -> AccessRules:
    """Who may enter. Raises BadSetting where everybody on the network could."""
    ring = KeyRing(KeyFile(paths.keys_file()))
    is_required = settings.require_key or not is_loopback(settings.host)
    check_exposure(settings.host, has_key=settings.api_key is not None or bool(ring))
    if settings.require_key and settings.api_key is None and not ring:
        raise BadSetting(
            "--require-key is set and there is no API key; make one with `appliance key create`",
            param="require_key",
        )
    return AccessRules(api_key=settings.api_key, ring=ring, is_required=is_required)


def _bind_all(settings: Settings) -> list[socket.socket]:
    """The appliance's own port, then Ollama's if that is wanted. Raises PortTaken, BadSetting."""
    listeners = [bind(settings.host, settings.port)]
    if settings.ollama_port is not None:
        try:
            listeners.append(bind(settings.host, settings.ollama_port))
        except ApplianceError:
            listeners[0].close()
            raise
    return listeners


def _residency_rules(settings: Settings) -> ResidencyRules:
    """Raises BadSetting."""
    text = settings.keep_alive.strip().lower()
    try:
        kept_s = FOREVER_S if text == "forever" else keep_alive_s(text)
    except InvalidRequest:
        raise BadSetting(
            f"--keep-alive is {settings.keep_alive!r}; write a duration such as 5m or 1h30m, or forever",
            param="keep_alive",
        ) from None
    return ResidencyRules(
        keep_alive_s=FOREVER_S if kept_s is None else kept_s, max_models=settings.max_models
    )


def pinned_names(settings: Settings) -> list[str]:
    return [name.strip() for name in (settings.pin or "").split(",") if name.strip()]


def _size_of(file: ModelFile) -> int:
    """About what its weights will take."""
    paths_of = file.path.glob("*.safetensors") if file.path.is_dir() else [file.path]
    return sum(path.stat().st_size for path in paths_of)


def load_file(
    load: Callable[[Settings, ModelFile, Report, Room, RopeOverride | None], ResidentModel],
    settings: Settings,
    overrides: ModelOverrides,
    file: ModelFile,
    room: Room,
    report: Report,
) -> ResidentModel:
    """Load a model as the settings file wants that one."""
    override = overrides.of(file.model_id)
    if override.context is not None:
        settings = replace(settings, context=override.context)
    return override.apply(load(settings, file, report, room, override.rope))


def _load_again(
    settings: Settings, overrides: ModelOverrides, model: LibraryModel, room: Room, report: Report
) -> ResidentModel:
    """Load a model that a request asks for."""
    from appliance.loader import load_model

    return load_file(load_model, settings, overrides, model.file, room, report)


def find_model(settings: Settings, report: Callable[[str, float | None], None]) -> ModelFile:
    """Find or fetch the model that the settings name. Raises what `ensure_model` raises."""

    def tell(progress: PullProgress) -> None:
        share = progress.done_bytes / progress.total_bytes if progress.total_bytes else None
        if progress.phase is not PullPhase.INSTALLED:
            report(f"{progress.phase} {progress.model_id} {progress.source}".strip(), share)

    store = ModelStore(paths.models_dir(settings.models_dir), shipped=paths.shipped_model())
    return ensure_model(settings.model, Catalog.load(), store, tell)


def stop_at_once(exit_code: int) -> NoReturn:
    """End the process without waiting for threads."""
    logging.shutdown()
    os._exit(exit_code)
