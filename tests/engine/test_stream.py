"""TokenStream: order, coalescing, waking and cancellation, for coroutines and for threads."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from appliance.engine.batch import TokenLogprobs
from appliance.engine.sequence import FinishReason, SequenceId
from appliance.engine.stream import FinishEvent, TokenEvent, TokenStream

FINISH = FinishEvent(
    reason=FinishReason.STOP, num_prompt_tokens=3, num_output_tokens=2, num_prefix_hit_tokens=0, queue_s=0.5
)


def make_stream(aborted: list[tuple[int, FinishReason]] | None = None) -> TokenStream:
    calls = [] if aborted is None else aborted
    return TokenStream(SequenceId(7), lambda sequence_id, reason: calls.append((sequence_id, reason)))


def event(*token_ids: int, stop: bool = False) -> TokenEvent:
    return TokenEvent(token_ids=token_ids, ends_with_stop_token=stop)


async def collect(stream: TokenStream) -> list[TokenEvent | FinishEvent]:
    return [item async for item in stream]


def test_what_gathered_is_one_event_and_the_finish_is_the_last() -> None:
    stream = make_stream()
    stream.push(event(1))
    stream.push(event(2, 3))
    stream.push(event(4, stop=True), FINISH)
    expected = [event(1, 2, 3, 4, stop=True), FINISH]
    assert list(stream) == expected
    assert list(stream) == []
    assert asyncio.run(collect(stream)) == []


def test_a_finish_without_tokens_is_delivered() -> None:
    stream = make_stream()
    stream.push(None, FINISH)
    assert asyncio.run(collect(stream)) == [FINISH]


def test_logprobs_are_joined_token_by_token() -> None:
    stream = make_stream()
    items = [TokenLogprobs(logprob=-float(i), top=()) for i in range(3)]
    stream.push(TokenEvent(token_ids=(5,), logprobs=(items[0],)))
    stream.push(TokenEvent(token_ids=(6, 7), logprobs=(items[1], items[2]), hidden_state=(1.0,)), FINISH)
    first = next(stream)
    assert first == TokenEvent(token_ids=(5, 6, 7), logprobs=tuple(items), hidden_state=(1.0,))


def test_the_stop_token_is_not_among_the_visible_ones() -> None:
    assert event(1, 2, 3, stop=True).visible_token_ids == (1, 2)
    assert event(1, 2, 3).visible_token_ids == (1, 2, 3)


def test_a_waiting_coroutine_gets_tokens_from_another_thread_one_by_one() -> None:
    stream = make_stream()
    taken = threading.Semaphore(0)

    def produce() -> None:
        for token_id in range(20):
            stream.push(event(token_id))
            assert taken.acquire(timeout=5)
        stream.push(None, FINISH)

    async def consume() -> list[TokenEvent | FinishEvent]:
        thread = threading.Thread(target=produce)
        thread.start()
        items = []
        async for item in stream:
            items.append(item)
            taken.release()
        thread.join()
        return items

    assert asyncio.run(consume()) == [*(event(i) for i in range(20)), FINISH]


def test_a_waiting_thread_gets_tokens_from_another_thread() -> None:
    stream = make_stream()
    thread = threading.Thread(
        target=lambda: [stream.push(event(i)) for i in range(50)] and stream.push(None, FINISH)
    )
    thread.start()
    items = list(stream)
    thread.join()
    assert items[-1] is FINISH
    assert tuple(t for i in items[:-1] if isinstance(i, TokenEvent) for t in i.token_ids) == tuple(range(50))


def count_wakes(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    wakes: list[int] = []
    schedule = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        wakes.append(1)
        return schedule(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return wakes


def test_the_loop_is_woken_once_per_wait_and_never_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def consume() -> None:
        wakes = count_wakes(asyncio.get_running_loop(), monkeypatch)
        stream = make_stream()
        stream.push(event(1))
        assert await anext(stream) == event(1)
        assert wakes == []
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.push(event(2))
        stream.push(event(3))
        stream.push(event(4), FINISH)
        assert wakes == [1]
        assert await waiting == event(2, 3, 4)
        assert await anext(stream) is FINISH
        assert wakes == [1]

    asyncio.run(consume())


def test_a_cancelled_consumer_loses_nothing_that_comes_later() -> None:
    complaints: list[dict[str, object]] = []

    async def consume() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        stream = make_stream()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stream.push(event(1))
        await asyncio.sleep(0)
        assert await anext(stream) == event(1)

    asyncio.run(consume())
    assert complaints == []


def test_pushing_to_a_loop_that_is_gone_does_not_disturb_the_engine() -> None:
    stream = make_stream()

    async def wait_and_leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)

    asyncio.run(wait_and_leave())
    stream.push(event(1), FINISH)
    assert list(stream) == [event(1), FINISH]


def test_cancelling_asks_the_engine_with_the_reason() -> None:
    aborted: list[tuple[int, FinishReason]] = []
    stream = make_stream(aborted)
    stream.cancel(FinishReason.STOP)
    with stream:
        pass
    assert aborted == [(7, FinishReason.STOP), (7, FinishReason.ABORT)]


def test_what_may_gather_unread_is_bounded() -> None:
    stream = TokenStream(SequenceId(1), lambda *_: None, most_unread=3)
    logprobs = TokenLogprobs(logprob=-1.0, top=((5, -1.0), (6, -2.0)))
    assert stream.push(TokenEvent(token_ids=(1, 2, 3)))
    assert not stream.push(TokenEvent(token_ids=(4,)))
    assert next(stream) == TokenEvent(token_ids=(1, 2, 3, 4))
    assert stream.push(TokenEvent(token_ids=(5,), logprobs=(logprobs,)))
    assert not stream.push(TokenEvent(token_ids=(6,), logprobs=(logprobs,)))
