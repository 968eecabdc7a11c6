"""Events on their way from the engine's thread to a reader: none lost, none twice, never too many held."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from appliance.engine.sequence import FinishReason, SequenceId, ServiceClass
from appliance.engine.stream import FinishEvent, TokenEvent, TokenStream
from appliance.observe.latency import LatencyRecorder, SequenceTiming
from appliance.server.generation import Generation
from appliance.server.generation_group import GenerationGroup
from appliance.server.output_text import OutputText
from appliance.server.text_events import TextDelta, TextEnd, TextEvent
from server.rig import TOKENIZER, byte_ids

FINISH = FinishEvent(
    reason=FinishReason.STOP, num_prompt_tokens=3, num_output_tokens=2, num_prefix_hit_tokens=0, queue_s=0.5
)


def make_group(num_choices: int) -> tuple[GenerationGroup, list[TokenStream]]:
    streams = [TokenStream(SequenceId(number), lambda *_: None) for number in range(num_choices)]
    generations = [
        Generation(
            index=index,
            stream=stream,
            text=OutputText(TOKENIZER, (), index=index),
            timing=SequenceTiming(LatencyRecorder(), received_s=0.0),
            deadline_s=None,
        )
        for index, stream in enumerate(streams)
    ]
    group = GenerationGroup(generations, num_per_prompt=num_choices, service_class=ServiceClass.SILVER)
    return group, streams


def push(stream: TokenStream, text: str, finish: FinishEvent | None = None) -> None:
    stream.push(TokenEvent(token_ids=tuple(byte_ids(text.encode()))) if text else None, finish)


def text_of(events: Sequence[TextEvent], index: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.index == index)


async def read_all(
    group: GenerationGroup, passes: Callable[[Sequence[TextEvent]], bool] = lambda _: False
) -> list[TextEvent]:
    events: list[TextEvent] = []
    while not group.is_done:
        events += await group.read(passes)
    return events


@pytest.mark.parametrize("is_passing", [False, True])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_a_burst_beyond_the_room_arrives_whole_and_in_order(is_passing: bool, num_choices: int) -> None:
    text = "abcdefghij" * 100

    async def run() -> tuple[list[TextEvent], list[TextEvent]]:
        group, streams = make_group(num_choices)
        passed: list[TextEvent] = []

        def take(events: Sequence[TextEvent]) -> bool:
            if not is_passing or any(isinstance(event, TextEnd) for event in events):
                return False
            passed.extend(events)
            return True

        reader = asyncio.create_task(read_all(group, take))
        await asyncio.sleep(0)
        for stream in streams:
            await asyncio.to_thread(push, stream, text)
        await asyncio.sleep(0.01)
        for stream in streams:
            await asyncio.to_thread(push, stream, "end", FINISH)
        return passed, await asyncio.wait_for(reader, 5)

    passed, read = asyncio.run(run())
    assert bool(passed) == is_passing
    for index in range(num_choices):
        assert text_of([*passed, *read], index) == text + "end"


def test_a_reader_that_does_something_else_is_passed_nothing_and_little_is_held() -> None:
    async def run() -> None:
        group, (stream,) = make_group(1)
        push(stream, "x" * 1000)
        await asyncio.sleep(0.01)
        assert len(group._ready) == 256
        events = await group.read(lambda _: pytest.fail("nobody waits"))
        push(stream, "", FINISH)
        events += await read_all(group)
        assert text_of(events) == "x" * 1000

    asyncio.run(run())


def test_a_nudge_ends_a_wait_with_nothing_and_loses_nothing() -> None:
    async def run() -> None:
        group, (stream,) = make_group(1)
        reader = asyncio.create_task(group.read())
        await asyncio.sleep(0)
        group.nudge()
        assert await reader == []
        push(stream, "a", FINISH)
        assert text_of(await read_all(group)) == "a"

    asyncio.run(run())


def test_what_fails_while_it_is_passed_ends_the_choice_in_words() -> None:
    async def run() -> TextEvent:
        group, (stream,) = make_group(1)

        def fail(_: Sequence[TextEvent]) -> bool:
            raise ValueError("private")

        reader = asyncio.create_task(read_all(group, fail))
        await asyncio.sleep(0)
        push(stream, "a")
        return (await asyncio.wait_for(reader, 5))[-1]

    end = asyncio.run(run())
    assert isinstance(end, TextEnd)
    assert end.error is not None
    assert "private" not in end.error.message


def test_after_the_close_nothing_is_taken_in() -> None:
    async def run() -> None:
        group, (stream,) = make_group(1)
        group.close()
        push(stream, "a", FINISH)
        await asyncio.sleep(0.01)
        assert group._ready == []

    asyncio.run(run())
