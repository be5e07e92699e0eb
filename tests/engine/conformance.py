"""What every rollout engine must do: a suite over the Engine protocol, run by a subclass for each engine.

A subclass is a ``Test...`` class that gives the fixtures ``policies`` and ``build``, and sets the tolerances that its
engine claims. The tests use nothing but the protocol, and compare with plain transformers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from engine.policies import Policies
from grpo.engine.protocol import Engine
from grpo.errors import RunFailed
from grpo.types import FinishReason, PolicySpan, Response, SampleRequest, SamplingParams

CONTEXT = 96

E = TypeVar("E", bound=Engine)
Build = Callable[[int], Engine]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run one test; a deadlock ends it. The limit is no claim about speed."""

    async def bounded() -> None:
        async with asyncio.timeout(300):
            await coroutine

    asyncio.run(bounded())


@asynccontextmanager
async def serving(engine: E) -> AsyncIterator[E]:
    """Start an engine at version 0, and close it."""
    await engine.start(0)
    try:
        yield engine
    finally:
        await engine.close()


def request(name: str, prompt: tuple[int, ...] = (5, 9, 4), max_tokens: int = 12, **params: Any) -> SampleRequest:
    """Return a request without stop tokens, so that its length is ``max_tokens``."""
    return SampleRequest(name, prompt, SamplingParams(max_tokens=max_tokens, **params))


def mixed_requests(count: int, seed: int = 0) -> list[SampleRequest]:
    """Return requests of many prompt and response lengths, temperatures and seeds; some share their prompt."""
    rng = random.Random(seed)
    requests = []
    for index in range(count):
        prompt = tuple(rng.randrange(3, 40) for _ in range(rng.randint(1, 40)))
        if index % 3 == 2:
            prompt = requests[-1].prompt_tokens
        temperature = rng.choice([1.0, 1.0, 0.6, 1.7, 0.0])
        requests.append(request(f"r{index}", prompt, rng.randint(1, 40), temperature=temperature, seed=index))
    return requests


async def until_generated(engine: Engine, tokens: int) -> None:
    """Wait until the engine has generated so many tokens since it started."""
    while (await engine.stats()).tokens_generated < tokens:
        await asyncio.sleep(0)


def submit(engine: Engine, *requests: SampleRequest) -> list[asyncio.Task[Response]]:
    """Ask for responses, each in a task of its own."""
    return [asyncio.create_task(engine.generate(asked)) for asked in requests]


class EngineConformance:
    """The suite. ``build(running_requests)`` makes an engine, not started, with a context of ``CONTEXT`` tokens."""

    logprob_tolerance = 1e-4
    seeds_fix_tokens = True

    @pytest.fixture
    def policies(self) -> Policies:
        raise NotImplementedError

    @pytest.fixture
    def build(self, policies: Policies) -> Build:
        raise NotImplementedError

    def assert_logprobs(self, policies: Policies, asked: SampleRequest, response: Response) -> None:
        assert response.request_id == asked.request_id
        expected = policies.expected_logprobs(asked, response)
        assert list(response.logprobs) == pytest.approx(expected, abs=self.logprob_tolerance)

    def test_logprobs_are_those_of_a_plain_forward_pass_when_requests_join_and_leave(self, policies, build) -> None:
        async def scenario() -> None:
            async with serving(build(5)) as engine:
                requests = mixed_requests(24)
                tasks = submit(engine, *requests[:8])
                for index, late in enumerate(requests[8:]):
                    await until_generated(engine, 7 * index)
                    tasks += submit(engine, late)
                responses = await asyncio.gather(*tasks)
            for asked, response in zip(requests, responses, strict=True):
                assert (len(response.tokens), response.finish) == (asked.params.max_tokens, FinishReason.LENGTH)
                assert response.spans == (PolicySpan(0, 0),)
                self.assert_logprobs(policies, asked, response)

        run(scenario())

    def test_greedy_tokens_are_those_of_generate(self, policies, build) -> None:
        async def scenario() -> None:
            prompts = [(7,), (3, 4, 5, 6), tuple(range(3, 30)), (3, 4, 5, 6, 9)]
            async with serving(build(3)) as engine:
                requests = [request(f"g{i}", prompt, 20, temperature=0.0) for i, prompt in enumerate(prompts)]
                responses = await asyncio.gather(*submit(engine, *requests))
            for asked, response in zip(requests, responses, strict=True):
                assert response.tokens == policies.greedy(0, asked.prompt_tokens, 20)
                self.assert_logprobs(policies, asked, response)

        run(scenario())

    def test_truncation_limits_the_tokens_and_not_their_logprobs(self, policies, build) -> None:
        async def scenario() -> None:
            prompt = (8, 30, 12)
            async with serving(build(4)) as engine:
                asked = [
                    request("top-k", prompt, 20, top_k=1, seed=1),
                    request("top-p", prompt, 20, top_p=1e-6, seed=2),
                ]
                for truncated, response in zip(asked, await asyncio.gather(*submit(engine, *asked)), strict=True):
                    assert response.tokens == policies.greedy(0, prompt, 20)
                    self.assert_logprobs(policies, truncated, response)

        run(scenario())

    def test_a_stop_token_ends_a_response_and_is_part_of_it(self, policies, build) -> None:
        async def scenario() -> None:
            free = policies.greedy(0, (5, 9, 4), 12)
            stop = free[-1]
            length = free.index(stop) + 1
            async with serving(build(2)) as engine:
                stopped, limited = await asyncio.gather(
                    engine.generate(request("s", temperature=0.0, stop_token_ids=(stop,))),
                    engine.generate(request("l", temperature=0.0, max_tokens=5)),
                )
            assert (stopped.tokens, stopped.finish) == (free[:length], FinishReason.STOP)
            assert (limited.tokens, limited.finish) == (free[:5], FinishReason.LENGTH)

        run(scenario())

    def test_no_more_requests_run_than_it_has_room_for(self, build) -> None:
        async def scenario() -> None:
            async with serving(build(3)) as engine:
                tasks = submit(engine, *mixed_requests(10))
                seen = []
                while not all(task.done() for task in tasks):
                    stats = await engine.stats()
                    seen.append(stats.running)
                    assert 0 <= stats.kv_used <= 1
                    await asyncio.sleep(0)
                assert max(seen) == 3
                stats = await engine.stats()
                assert (stats.running, stats.queued, stats.kv_used) == (0, 0, 0)
                assert stats.tokens_generated == sum(len(task.result().tokens) for task in tasks)
                assert engine.capacity.running_requests == 3

        run(scenario())

    def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(self, build) -> None:
        if not self.seeds_fix_tokens:
            pytest.skip("this engine does not claim it")

        async def scenario() -> None:
            async with serving(build(6)) as engine:
                alone = await engine.generate(request("a", max_tokens=40, seed=3))
                among, other, *_ = await asyncio.gather(
                    *submit(
                        engine,
                        request("b", max_tokens=40, seed=3),
                        request("c", max_tokens=40, seed=4),
                        *mixed_requests(9),
                    )
                )
            assert among.tokens == alone.tokens
            assert among.logprobs == pytest.approx(alone.logprobs, abs=self.logprob_tolerance)
            assert other.tokens != alone.tokens

        run(scenario())

    def test_abort_returns_the_tokens_so_far_and_makes_room(self, policies, build) -> None:
        async def scenario() -> None:
            async with serving(build(1)) as engine:
                asked = [request("running", max_tokens=90), request("queued"), request("next", max_tokens=3)]
                running, queued, following = submit(engine, *asked)
                await until_generated(engine, 4)
                await engine.abort("queued")
                await engine.abort("running")
                await engine.abort("never heard of")
                aborted = await running
                assert aborted.finish is FinishReason.ABORT
                assert 4 <= len(aborted.tokens) < 90
                self.assert_logprobs(policies, asked[0], aborted)
                assert await queued == Response("queued", (), (), (), FinishReason.ABORT)
                assert (await following).finish is FinishReason.LENGTH
                await engine.abort("next")

        run(scenario())

    def test_a_cancelled_generate_makes_room(self, build) -> None:
        async def scenario() -> None:
            async with serving(build(1)) as engine:
                running, queued = submit(engine, request("running", max_tokens=90), request("queued", max_tokens=90))
                await until_generated(engine, 2)
                running.cancel()
                queued.cancel()
                await asyncio.wait([running, queued])
                assert len((await engine.generate(request("next"))).tokens) == 12
                await engine.drain(60)
                stats = await engine.stats()
                assert stats.running == 0
                assert stats.tokens_generated < 90

        run(scenario())

    def test_pause_stops_decoding_and_keeps_every_request(self, policies, build) -> None:
        async def scenario() -> None:
            async with serving(build(2)) as engine:
                early = request("early", max_tokens=60)
                late = request("late", max_tokens=5)
                tasks = submit(engine, early)
                await until_generated(engine, 3)
                await engine.pause()
                before = (await engine.stats()).tokens_generated
                tasks += submit(engine, late)
                for _ in range(100):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.02)
                stats = await engine.stats()
                assert (stats.tokens_generated, stats.running + stats.queued) == (before, 2)
                assert not any(task.done() for task in tasks)
                await engine.resume()
                for asked, response in zip([early, late], await asyncio.gather(*tasks), strict=True):
                    assert len(response.tokens) == asked.params.max_tokens
                    self.assert_logprobs(policies, asked, response)

        run(scenario())

    def test_new_weights_take_effect_at_once_and_leave_what_was_sampled_alone(self, policies, build) -> None:
        async def scenario() -> None:
            async with serving(build(8)) as engine:
                requests = [replace_max_tokens(asked, 40) for asked in mixed_requests(8)]
                tasks = submit(engine, *requests)
                for version, tokens in ((1, 8 * 10), (2, 8 * 25)):
                    await until_generated(engine, tokens)
                    await engine.pause()
                    assert engine.version == version - 1
                    await engine.load(policies.source(version), version)
                    assert engine.version == version
                    await engine.rebuild()
                    await engine.resume()
                responses = await asyncio.gather(*tasks)
            for asked, response in zip(requests, responses, strict=True):
                assert [span.version for span in response.spans] == [0, 1, 2]
                self.assert_logprobs(policies, asked, response)
                # The test would show nothing if the versions were alike.
                stale = policies.logprobs(0, asked.prompt_tokens, response.tokens, asked.params.temperature)
                assert list(response.logprobs) != pytest.approx(stale, abs=0.1)

        run(scenario())

    def test_a_rebuilt_request_goes_on_like_a_new_one_with_the_same_prefix(self, policies, build) -> None:
        async def scenario() -> None:
            asked = request("old", (6, 17, 21), 30, temperature=0.0)
            async with serving(build(2)) as engine:
                (task,) = submit(engine, asked)
                await until_generated(engine, 11)
                await engine.pause()
                await engine.load(policies.source(1), 1)
                await engine.rebuild()
                await engine.resume()
                response = await task
            split = response.spans[1].start
            async with serving(build(2)) as fresh:
                await fresh.load(policies.source(1), 1)
                prefix = asked.prompt_tokens + response.tokens[:split]
                expected = await fresh.generate(request("new", prefix, 30 - split, temperature=0.0))
            assert response.spans == (PolicySpan(0, 0), PolicySpan(split, 1))
            assert response.tokens[split:] == expected.tokens
            assert response.logprobs[split:] == pytest.approx(expected.logprobs, abs=self.logprob_tolerance)

        run(scenario())

    def test_drain_waits_for_every_request_and_gives_up_at_its_deadline(self, build) -> None:
        async def scenario() -> None:
            async with serving(build(2)) as engine:
                await engine.drain(0)
                tasks = submit(engine, *mixed_requests(6))
                await asyncio.sleep(0)
                await engine.drain(60)
                await asyncio.sleep(0)
                assert all(task.done() for task in tasks)
                await engine.pause()
                tasks = submit(engine, request("held"))
                await asyncio.sleep(0)
                with pytest.raises(TimeoutError):
                    await engine.drain(0.01)
                assert not tasks[0].done()
                await engine.resume()
                await engine.drain(60)
                assert len((await tasks[0]).tokens) == 12

        run(scenario())

    def test_a_request_over_the_context_is_refused(self, build) -> None:
        async def scenario() -> None:
            async with serving(build(2)) as engine:
                with pytest.raises(RunFailed, match=f"3 prompt.*{CONTEXT - 2} response.*{CONTEXT + 1}.*{CONTEXT}"):
                    await engine.generate(request("long", max_tokens=CONTEXT - 2))
                fits = await engine.generate(request("fits", max_tokens=CONTEXT - 3))
                assert len(fits.tokens) == CONTEXT - 3

        run(scenario())

    def test_a_closed_engine_fails_what_it_had_and_what_comes(self, build) -> None:
        async def scenario() -> None:
            engine = build(1)
            with pytest.raises(RunFailed, match="not started"):
                await engine.generate(request("early"))
            await engine.start(0)
            tasks = submit(engine, request("running", max_tokens=90), request("queued"))
            await until_generated(engine, 2)
            await engine.close()
            await engine.close()
            for task in tasks:
                with pytest.raises(RunFailed, match="closed"):
                    await task
            with pytest.raises(RunFailed, match="closed"):
                await engine.generate(request("late"))

        run(scenario())

    @pytest.mark.parametrize("seed", range(3))
    def test_any_interleaving_keeps_every_promise(self, policies, build, seed: int) -> None:
        async def scenario() -> None:
            rng = random.Random(seed)
            requests = {asked.request_id: asked for asked in mixed_requests(24, seed)}
            waiting = list(requests.values())
            tasks: dict[str, asyncio.Task[Response]] = {}
            aborted: set[str] = set()
            async with serving(build(4)) as engine:
                while waiting:
                    action = rng.choice(["join", "join", "join", "join", "abort", "refresh", "decode"])
                    if action == "join":
                        asked = waiting.pop()
                        tasks[asked.request_id] = submit(engine, asked)[0]
                        await asyncio.sleep(0)
                    elif action == "abort" and tasks:
                        name = rng.choice(list(tasks))
                        await engine.abort(name)
                        await asyncio.sleep(0)
                        assert tasks[name].done()
                        aborted.add(name)
                    elif action == "refresh":
                        await engine.pause()
                        await engine.load(policies.source(engine.version + 1), engine.version + 1)
                        await engine.rebuild()
                        await engine.resume()
                    elif action == "decode":
                        for _ in range(rng.randrange(100)):
                            await asyncio.sleep(0)
                await engine.drain(120)
                last = engine.version
                responses = [await task for task in tasks.values()]
            assert last >= 1
            assert any(len(response.spans) > 1 for response in responses)
            for response in responses:
                asked = requests[response.request_id]
                full = len(response.tokens) == asked.params.max_tokens
                assert response.finish is (FinishReason.LENGTH if full else FinishReason.ABORT)
                assert full or response.request_id in aborted
                versions = response.token_versions()
                assert versions == sorted(versions)
                self.assert_logprobs(policies, asked, response)

        run(scenario())


def replace_max_tokens(asked: SampleRequest, max_tokens: int) -> SampleRequest:
    """Return the request with another length."""
    return replace(asked, params=replace(asked.params, max_tokens=max_tokens))
