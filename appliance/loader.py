"""From a model file to a resident model: text side, backend, KV pool, runner, engine.

Imported only once there is something to load. Torch comes with a backend that runs on it.
"""

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from appliance import paths, pool_choice
from appliance.catalog import ModelFile
from appliance.config import MemoryAmount, Settings
from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.batch import Batch, Runner, ScheduledSequence
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.fresh_blocks import CommittedMemory
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.engine.swap_space import HostMemory
from appliance.errors import BadSetting, NotEnoughGpuMemory, NotEnoughMemory
from appliance.formats.model_file import open_model_file
from appliance.matrix_losses import by_layer, read_losses
from appliance.model.rope_override import RopeOverride
from appliance.model_pool import ALL_ROOM, ModelDefaults, ModelFacts, ResidentModel, Room
from appliance.observe.prompt_log import PromptLog
from appliance.observe.resources import ProcessResources
from appliance.pool_choice import choose_pool
from appliance.precision_map import EMPTY_MAP, PrecisionMap, map_file, read_map
from appliance.quality import Quality, read_quality, variant_of
from appliance.runtime.device import Device, select_device
from appliance.runtime.human_size import human_size
from appliance.runtime.kv_policy import KVChoice
from appliance.runtime.layer_slices import LayeredBackend
from appliance.runtime.loading import LoadedBackend, LoadWishes, Report, load_backend
from appliance.runtime.runners import make_runner
from appliance.runtime.threads import usable_threads
from appliance.text.chat_template import ChatTemplate
from appliance.text.constraints import ConstraintCompiler
from appliance.text.model_text import read_template, read_tokenizer
from appliance.text.purpose import read_purpose
from appliance.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from appliance.runtime.backend import Backend

_WARM_UP_TOKENS = 8
_MOST_SWAP_BYTES = 4 * 2**30
logger = logging.getLogger(__name__)


def load_model(
    settings: Settings,
    found: ModelFile,
    report: Report,
    room: Room = ALL_ROOM,
    rope: RopeOverride | None = None,
) -> ResidentModel:
    """Load a model file and start its engine. `room` is what it must leave to other models.

    Raises BadModelFile, UnsupportedModel, BadSetting or NotEnoughMemory; of a card NoUsableGpu,
    NotEnoughGpuMemory and DeviceLost.
    """
    device = select_device(settings.device)
    if device.type != "cuda":
        return _load_onto(device, settings, found, report, room, rope)
    from appliance.runtime.device_faults import device_faults

    try:
        with device_faults():
            return _load_onto(device, settings, found, report, room, rope)
    except NotEnoughMemory as error:
        raise NotEnoughGpuMemory(error.message, param=error.param) from error


def _load_onto(
    device: Device,
    settings: Settings,
    found: ModelFile,
    report: Report,
    room: Room,
    rope: RopeOverride | None,
) -> ResidentModel:
    started_s = time.monotonic()
    num_threads = settings.threads or usable_threads()
    report(f"loading {found.path.name}", None)
    with open_model_file(found.path) as file:
        tokenizer = read_tokenizer(file, paths.cache_dir() / "tokenizers")
        template = _chat_template(read_template(file), tokenizer)
        purpose = read_purpose(file, found.model_id)
        num_parameters = sum(tensor.num_elements for tensor in file.tensors.values())
        wishes = load_wishes(settings, device, num_threads, room, precision_map=wanted_map(settings, found))
        loaded = load_backend(file, replace(wishes, rope=rope), report)
    context_length = pool_choice.context_length(settings.context, loaded.config)
    kv = _choose_kv(settings, loaded, context_length, room)
    engine = _start_engine(settings, found.model_id, loaded, kv, context_length, report)
    prompt_log = _prompt_log(settings, found, tokenizer)
    facts = replace(
        _facts(loaded, kv, context_length, wishes),
        num_parameters=num_parameters,
        purpose=purpose,
        quality=_known_quality(settings, found),
        layer_losses=by_layer(read_losses(found.path)),
    )
    _log_ready(found.model_id, facts, time.monotonic() - started_s)
    return ResidentModel(
        model_id=found.model_id,
        created=int(found.path.stat().st_mtime),
        engine=engine,
        tokenizer=tokenizer,
        chat_template=template,
        constraints=ConstraintCompiler(tokenizer),
        facts=facts,
        close=partial(_close, engine, prompt_log),
        defaults=_defaults(found),
        prompt_log=prompt_log,
    )


def _facts(loaded: LoadedBackend, kv: KVChoice, context_length: int, wishes: LoadWishes) -> ModelFacts:
    """What the load decided; what the file says of itself is not among it."""
    return ModelFacts(
        architecture=loaded.config.architecture,
        context_length=context_length,
        precision=loaded.precision,
        kv_dtype=kv.dtype_name,
        weights_bytes=loaded.weights_bytes,
        kv_pool_bytes=kv.plan.pool_bytes,
        backend=loaded.backend_name,
        device=str(wishes.device),
        num_threads=wishes.num_threads,
        num_parameters=0,
    )


def _prompt_log(settings: Settings, found: ModelFile, tokenizer: Tokenizer) -> PromptLog | None:
    if not settings.record_prompts:
        return None
    return PromptLog(paths.prompts_file(found.model_id), tokenizer.spelt)


def _close(engine: Engine, prompt_log: PromptLog | None) -> None:
    engine.stop()
    if prompt_log is not None:
        prompt_log.close()


def _known_quality(settings: Settings, found: ModelFile) -> Quality | None:
    """What this file is known to lose with these settings; said aloud where that is past a bound."""
    variant = variant_of(settings.precision, settings.activations, settings.kv_dtype)
    quality = read_quality(found.path, variant)
    if quality is not None and quality.failures:
        logger.warning(
            "%s as %s is past its quality bounds against %s: %s; a wider --precision loses less",
            *(found.model_id, variant, quality.against, "; ".join(quality.failures)),
        )
    return quality


def _defaults(found: ModelFile) -> ModelDefaults:
    """What the model's makers recommend, under the names of Ollama's options."""
    sampling = msgspec.to_builtins(found.entry.sampling) if found.entry else {}
    if "repetition_penalty" in sampling:
        sampling["repeat_penalty"] = sampling.pop("repetition_penalty")
    return ModelDefaults(options=sampling)


def wishes_of(settings: Settings) -> LoadWishes:
    """Return what the settings ask of a load on this machine. Raises BadSetting."""
    return load_wishes(settings, select_device(settings.device), settings.threads or usable_threads())


def load_wishes(
    settings: Settings,
    device: Device,
    num_threads: int,
    room: Room = ALL_ROOM,
    *,
    precision_map: PrecisionMap = EMPTY_MAP,
) -> LoadWishes:
    """Return what the settings ask of a load, and what is free for it now."""
    return LoadWishes(
        backend=settings.backend,
        precision=settings.precision,
        activations=settings.activations,
        kv_dtype=settings.kv_dtype,
        device=device,
        num_threads=num_threads,
        step_tokens=settings.step_tokens,
        free_bytes=_free_bytes(device, room),
        served_context=settings.context,
        library_folder=paths.native_dir(),
        max_sequences=settings.max_sequences,
        kernel_folder=paths.cache_dir() / "kernels",
        precision_map=precision_map,
    )


def wanted_map(settings: Settings, found: ModelFile) -> PrecisionMap:
    """Return what `int8-mixed` does: as the map beside the file says, else as the catalogue does.

    Raises BadSetting where int8-mixed is asked for and there is neither.
    """
    if settings.precision != "int8-mixed":
        return EMPTY_MAP
    wanted = read_map(found.path)
    if wanted is None and found.entry is not None and found.entry.keep_16_bit:
        wanted = PrecisionMap(kept=frozenset(found.entry.keep_16_bit))
    if wanted is None:
        raise BadSetting(
            f"--precision int8-mixed needs a precision map, {map_file(found.path)}, that names what to "
            "keep in 16 bits, as keep-16-bit = ['0.down']; `appliance calibrate` writes one, and "
            "--precision int8 needs none",
            param="precision",
        )
    return wanted


def _chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate | None:
    return ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token) if source else None


def _free_bytes(device: Device, room: Room) -> int:
    """What may be taken. On a card pools are written when they are made: nothing there is only promised."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(torch.device(str(device)))[0])
    return max(0, ProcessResources().read_memory().available_bytes - room.promised_bytes)


def _choose_kv(settings: Settings, loaded: LoadedBackend, context_length: int, room: Room) -> KVChoice:
    kv = choose_pool(
        settings,
        loaded.pool_terms,
        context_length,
        free_bytes=_free_bytes(loaded.backend.device, room),
        num_sharing=room.num_sharing,
    )
    logger.info(kv.plan.explanation)
    if kv.plan.warning:
        logger.log(logging.WARNING if settings.context else logging.INFO, kv.plan.warning)
    return kv


def _start_engine(
    settings: Settings,
    model_id: str,
    loaded: LoadedBackend,
    kv: KVChoice,
    context_length: int,
    report: Report,
) -> Engine:
    backend = loaded.backend
    backend.attach_kv(kv.plan.num_blocks, kv.layout)
    runner = make_runner(backend)
    report("warming up", None)
    warm_up(runner)
    host = swap_places(
        backend, settings.swap_memory, block_bytes=kv.plan.block_bytes, most_places=kv.plan.num_blocks
    )
    scheduler = make_scheduler(
        BlockPool(
            kv.plan.num_blocks,
            backend.kv_layout.block_size,
            namespace=f"{model_id}/{loaded.precision}/{kv.dtype_name}",
        ),
        _policies(settings),
        max_sequences=settings.max_sequences,
        step_tokens=settings.step_tokens,
        context_length=context_length,
        queue_limit=settings.queue,
        host=host,
        num_layers=backend.num_layers if isinstance(backend, LayeredBackend) else 0,
        memory=backend if isinstance(backend, CommittedMemory) else None,
    )
    engine = Engine(runner, scheduler, queue_limit=settings.queue)
    engine.start()
    return engine


def swap_places(
    backend: "Backend", wish: MemoryAmount | None, *, block_bytes: int, most_places: int
) -> HostMemory | None:
    """Allocate places in main memory for blocks of a pool that is on a card; None where it is not.

    Without a wish: an eighth of what is free, up to 4 GiB. It is locked in memory, so no more is useful than
    the pool has.
    """
    if backend.device.type == "cpu":
        return None
    from appliance.runtime.host_pages import SwappingBackend

    if not isinstance(backend, SwappingBackend):
        return None
    free_bytes = ProcessResources().read_memory().available_bytes
    num_bytes = min(_MOST_SWAP_BYTES, free_bytes // 8)
    if wish is not None:
        num_bytes = wish.num_bytes if wish.num_bytes is not None else int(free_bytes * (wish.share or 0))
    num_places = min(most_places, num_bytes // block_bytes)
    if num_places < 1:
        return None
    try:
        block_s = backend.attach_host(num_places)
    except RuntimeError as error:  # a limit on locked memory, or the card's driver
        logger.warning("preempted requests are computed again, not kept in main memory: %s", error)
        return None
    logger.info(
        "%s of main memory keep %d blocks of preempted requests; %.2f ms a block",
        *(human_size(num_places * block_bytes), num_places, 1e3 * block_s),
    )
    return HostMemory(num_places=num_places, block_s=block_s)


def _policies(settings: Settings) -> Policies:
    return Policies(
        short_work_tokens=settings.short_tokens,
        uses_classes=not settings.no_classes,
        uses_windows=not settings.no_admission_windows,
        stream_slowdown=settings.stream_slowdown,
        headroom=settings.headroom,
        patience_s=settings.patience,
    )


def warm_up(runner: Runner) -> None:
    """Run a prompt and a next token, so that the first request finds threads, caches and kernels ready.

    Writes into block 0, which nobody has been given yet.
    """
    known = [0] * (_WARM_UP_TOKENS + 1)
    params = SamplingParams(temperature=0.0)
    for num_computed, new_token_ids in ((0, known[:-1]), (_WARM_UP_TOKENS, known[-1:])):
        sequence = ScheduledSequence(
            sequence_id=SequenceId(0),
            new_token_ids=tuple(new_token_ids),
            num_computed_tokens=num_computed,
            block_table=(BlockId(0),),
            known_token_ids=known,
            num_prompt_tokens=_WARM_UP_TOKENS,
            sampling=params,
        )
        runner.collect(runner.launch(Batch(sequences=(sequence,))))


def _log_ready(model_id: str, facts: ModelFacts, took_s: float) -> None:
    logger.info(
        "%s loaded in %.1f s: %s on %s with %d threads, %s weights of %.0f MiB, %s KV, context %d",
        model_id,
        took_s,
        facts.backend,
        facts.device,
        facts.num_threads,
        facts.precision,
        facts.weights_bytes / 2**20,
        facts.kv_dtype,
        facts.context_length,
    )
