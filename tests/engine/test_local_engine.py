"""What is particular to the local engine: its weights, caches, failures, and that it repeats itself bit for bit."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

import grpo.engine.local.decoder as decoder_module
from engine.conformance import mixed_requests, request, run, serving, submit, until_generated
from engine.policies import Policies, TensorSource
from grpo.engine.local import LocalEngine
from grpo.errors import RunFailed, UserError
from grpo.types import Response
from support.models import VOCABULARY, make_model


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(make_model(tmp_path_factory.mktemp("llama")))


def engine_of(policies: Policies, running_requests: int = 4, **options: Any) -> LocalEngine:
    return LocalEngine("engine-0", policies.folder, running_requests=running_requests, max_context_length=96, **options)


def forwards(engine: LocalEngine) -> list[tuple[int, int]]:
    """Return a list that grows by the (rows, tokens per row) of every forward pass of a started engine."""
    assert engine._decoder is not None
    shapes: list[tuple[int, int]] = []

    def record(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        shapes.append(tuple(kwargs["input_ids"].shape))

    engine._decoder.model.base_model.register_forward_pre_hook(record, with_kwargs=True)
    return shapes


def assert_logprobs(policies: Policies, asked: Any, response: Response) -> None:
    assert list(response.logprobs) == pytest.approx(policies.expected_logprobs(asked, response), abs=1e-4)


# -- weights and caches ------------------------------------------------------------------------------------------------


def test_without_a_rebuild_the_cache_is_stale_so_it_is_the_rebuild_that_makes_logprobs_right(policies) -> None:
    async def tail(rebuild: bool) -> tuple[list[float], list[float]]:
        async with serving(engine_of(policies)) as engine:
            asked = request("r", tuple(range(3, 20)), 30, seed=5)
            (task,) = submit(engine, asked)
            await until_generated(engine, 10)
            await engine.pause()
            await engine.load(policies.source(1), 1)
            if rebuild:
                await engine.rebuild()
            await engine.resume()
            response = await task
        start = response.spans[1].start
        return list(response.logprobs[start:]), policies.expected_logprobs(asked, response)[start:]

    async def scenario() -> None:
        logprobs, expected = await tail(rebuild=True)
        assert logprobs == pytest.approx(expected, abs=1e-4)
        logprobs, expected = await tail(rebuild=False)
        assert logprobs != pytest.approx(expected, abs=1e-2)

    run(scenario())


def test_a_prompt_is_prefilled_once_for_all_its_siblings_also_for_late_ones(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies, 16)) as engine:
            shapes = forwards(engine)
            prompt = tuple(range(3, 20))
            siblings = [request(f"s{i}", prompt, 20, seed=i) for i in range(8)]
            tasks = submit(engine, *siblings[:5])
            await until_generated(engine, 20)
            tasks += submit(engine, *siblings[5:])
            for asked, response in zip(siblings, await asyncio.gather(*tasks), strict=True):
                assert_logprobs(policies, asked, response)
        assert [shape for shape in shapes if shape[1] > 1] == [(1, len(prompt) - 1)]

    run(scenario())


def test_a_late_sibling_takes_nothing_from_a_cache_of_older_weights(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies)) as engine:
            prompt = tuple(range(3, 20))
            (old,) = submit(engine, request("old", prompt, 60))
            await until_generated(engine, 5)
            await engine.pause()
            await engine.load(policies.source(1), 1)
            await engine.resume()
            late = request("late", prompt, 20)
            response = await engine.generate(late)
            assert_logprobs(policies, late, response)
            assert response.spans[0].version == 1
            old.cancel()

    run(scenario())


def test_work_follows_the_number_of_requests_that_run(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies, 8)) as engine:
            shapes = forwards(engine)
            await asyncio.gather(*submit(engine, *(request(f"r{i}", (7,), i + 1) for i in range(4))))
        assert shapes == [(4, 1), (3, 1), (2, 1), (1, 1)]

    run(scenario())


def test_a_long_prefill_is_split_by_length(policies, monkeypatch) -> None:
    monkeypatch.setattr(decoder_module, "_PREFILL_TOKENS", 40)

    async def scenario() -> None:
        async with serving(engine_of(policies, 8)) as engine:
            shapes = forwards(engine)
            requests = [request(f"r{n}", tuple(range(3, 4 + n)), 5) for n in (2, 30, 20, 3, 19, 1)]
            for asked, response in zip(requests, await asyncio.gather(*submit(engine, *requests)), strict=True):
                assert_logprobs(policies, asked, response)
        assert shapes[:3] == [(1, 30), (2, 20), (3, 3)]

    run(scenario())


def test_tied_embeddings_load_under_either_name_or_both(tmp_path) -> None:
    policies = Policies(make_model(tmp_path, tied=True))
    state = dict(policies.model(1).state_dict())
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= state.keys()

    def without(name: str) -> list[tuple[str, torch.Tensor]]:
        return [(key, tensor) for key, tensor in state.items() if key != name]

    async def scenario() -> None:
        for tensors in (without("lm_head.weight"), without("model.embed_tokens.weight"), list(state.items())):
            async with serving(engine_of(policies)) as engine:
                await engine.load(TensorSource(1, tensors), 1)
                asked = request("r")
                assert_logprobs(policies, asked, await engine.generate(asked))
        async with serving(engine_of(policies)) as engine:
            untied = [*without("lm_head.weight"), ("lm_head.weight", state["lm_head.weight"] + 1)]
            with pytest.raises(RunFailed, match=r"lm_head.weight is tied to a parameter that came with other values"):
                await engine.load(TensorSource(1, untied), 1)

    run(scenario())


def wrong_weights(policies: Policies, kind: str) -> tuple[list[tuple[str, torch.Tensor]], str]:
    tensors = policies.source(1).tensors
    name, tensor = tensors[3]
    match kind:
        case "missing":
            return tensors[:3] + tensors[4:], f"1 of 21 parameters did not come, such as {name}"
        case "twice":
            return [*tensors, tensors[3]], f"{name} came twice"
        case "unknown":
            return [*tensors, ("model.extra", tensor)], "model.extra is not a parameter of the model"
    return [*tensors[:3], (name, tensor[:1]), *tensors[4:]], f"{name} has shape"


@pytest.mark.parametrize("kind", ["missing", "twice", "unknown", "shape"])
def test_weights_that_are_not_exactly_the_models_break_the_engine(policies, kind: str) -> None:
    async def scenario() -> None:
        tensors, message = wrong_weights(policies, kind)
        async with serving(engine_of(policies)) as engine:
            (task,) = submit(engine, request("r", max_tokens=60))
            await until_generated(engine, 3)
            await engine.pause()
            with pytest.raises(RunFailed, match=message):
                await engine.load(TensorSource(1, tensors), 1)
            assert engine.version == 0
            for waiting in (task, engine.generate(request("later")), engine.drain(1), engine.resume()):
                with pytest.raises(RunFailed, match=f"engine-0: the engine is broken: .*{message}"):
                    await waiting

    run(scenario())


def test_load_refuses_another_version_and_a_decoding_engine_and_goes_on(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies)) as engine:
            (task,) = submit(engine, request("r", max_tokens=30))
            await until_generated(engine, 3)
            with pytest.raises(RunFailed, match=r"load while requests are decoding\. Pause or drain it first"):
                await engine.load(policies.source(1), 1)
            with pytest.raises(RunFailed, match="rebuild while requests are decoding"):
                await engine.rebuild()
            await engine.pause()
            with pytest.raises(RunFailed, match="asked for weights 2, given weights 1"):
                await engine.load(policies.source(1), 2)
            await engine.resume()
            assert [span.version for span in (await task).spans] == [0]

    run(scenario())


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_raises_fails_every_request_with_its_cause(policies, overlap: bool) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies, 1, overlap=overlap)) as engine:
            tasks = submit(engine, request("running", max_tokens=60), request("queued"))
            await until_generated(engine, 3)
            cause = RuntimeError("the device is gone")

            def fail(*_: Any) -> None:
                raise cause

            engine._decoder.model.register_forward_pre_hook(fail)  # type: ignore[union-attr]
            for waiting in [*tasks, engine.generate(request("later")), engine.stats(), engine.pause()]:
                with pytest.raises(RunFailed, match="engine-0: the engine is broken: RuntimeError: the device") as info:
                    await waiting
                assert info.value.__cause__ is cause

    run(scenario())


def test_weights_that_are_not_finite_fail_the_requests_and_name_the_version(policies) -> None:
    async def scenario() -> None:
        tensors = [(name, torch.full_like(tensor, torch.nan)) for name, tensor in policies.source(1).tensors]
        async with serving(engine_of(policies)) as engine:
            await engine.load(TensorSource(1, tensors), 1)
            with pytest.raises(RunFailed, match="weights of version 1 give log-probabilities that are not finite"):
                await engine.generate(request("r"))

    run(scenario())


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ((), {}, "at least one token each"),
        ((5,), {"max_tokens": 0}, "at least one token each"),
        ((5, VOCABULARY), {}, f"token ids outside the vocabulary of {VOCABULARY}"),
        ((5, -1), {}, f"token ids outside the vocabulary of {VOCABULARY}"),
        ((5,), {"temperature": -1.0}, "temperature -1.0"),
        ((5,), {"top_p": 0.0}, "top_p 0.0"),
        ((5,), {"top_k": -1}, "top_k -1"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_others_go_on(policies, prompt, params, message) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies)) as engine:
            (task,) = submit(engine, request("fine"))
            with pytest.raises(RunFailed, match=f"engine-0 bad: .*{message}"):
                await engine.generate(request("bad", prompt, **params))
            assert len((await task).tokens) == 12

    run(scenario())


def test_an_id_in_use_is_refused(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies)) as engine:
            (task,) = submit(engine, request("same"))
            await asyncio.sleep(0)
            with pytest.raises(RunFailed, match="engine-0 same: a request with this id is queued or running"):
                await engine.generate(request("same"))
            await task
            await engine.generate(request("same"))

    run(scenario())


def edited(policies: Policies, folder: Path, **changes: Any) -> Path:
    shutil.copytree(policies.folder, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": 64}, "a context of 96 tokens, but the model has 64 positions"),
        ({"num_hidden_layers": 3}, "parameters have no weights, such as model.layers.2"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "does not compute dynamic"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}, "window of 8 tokens"),
        ({"model_type": "no-such-model"}, "cannot load the model"),
    ],
)
def test_a_model_that_it_would_compute_wrongly_is_refused(policies, tmp_path, changes, message) -> None:
    async def scenario() -> None:
        folder = edited(policies, tmp_path / "model", **changes)
        engine = LocalEngine("engine-0", folder, running_requests=2, max_context_length=96)
        with pytest.raises(UserError, match=message) as info:
            await engine.start(0)
        assert "\n" not in str(info.value)
        with pytest.raises(UserError, match=r"no config.json"):
            await LocalEngine("e", tmp_path, running_requests=2, max_context_length=96).start(0)

    run(scenario())


# -- repeatability and sampling ----------------------------------------------------------------------------------------


def test_inline_an_answer_is_graded_and_the_next_request_made_before_the_next_step(policies) -> None:
    async def scenario() -> None:
        async with serving(engine_of(policies, 8)) as engine:
            shapes = forwards(engine)

            async def grade(response: Response) -> int:
                await asyncio.sleep(0)
                return len(response.tokens)

            async def client(name: str, lengths: list[int]) -> None:
                for turn, length in enumerate(lengths):
                    (sampling,) = submit(engine, request(f"{name}-{turn}", (7,), length))
                    (response,) = await asyncio.gather(sampling)
                    await asyncio.create_task(grade(response))

            await asyncio.gather(client("a", [3, 4, 3, 4, 6]), client("b", [5, 2, 6, 3, 4]))
        # They end together, and until then both always have a request running: no step has one row.
        assert shapes == [(2, 1)] * 20

    run(scenario())


def test_inline_a_workload_repeats_bit_for_bit(policies) -> None:
    async def workload() -> list[Response]:
        async with serving(engine_of(policies, 5)) as engine:
            requests = mixed_requests(20)

            async def client(start: int) -> list[Response]:
                return [await engine.generate(asked) for asked in requests[start::4]]

            clients = [asyncio.create_task(client(start)) for start in range(4)]
            await until_generated(engine, 50)
            await engine.pause()
            await engine.load(policies.source(1), 1)
            await engine.rebuild()
            await engine.resume()
            return [response for responses in await asyncio.gather(*clients) for response in responses]

    assert asyncio.run(workload()) == asyncio.run(workload())


def test_sampled_tokens_follow_the_softmax(policies) -> None:
    async def scenario() -> None:
        prompt, count, temperature = (5, 9, 4), 4000, 3.0
        async with serving(engine_of(policies, 512)) as engine:
            asked = (request(f"r{i}", prompt, 1, temperature=temperature, seed=i) for i in range(count))
            responses = await asyncio.gather(*submit(engine, *asked))
        logits = policies.model(0)(torch.tensor([prompt])).logits[0, -1]
        expected = count * torch.softmax(logits.double() / temperature, dim=-1)
        observed = torch.bincount(torch.tensor([r.tokens[0] for r in responses]), minlength=VOCABULARY).double()
        # The approximation of the chi-square test needs at least 5 expected in each cell; uniform would be 100.
        assert 5 <= expected.min() < 50 < 200 < expected.max()
        assert chisquare(observed.numpy(), expected.numpy()).pvalue > 0.01

    run(scenario())


def test_successive_tokens_of_a_response_are_independent_draws(policies) -> None:
    async def scenario() -> None:
        asked = request("r", (5, 9, 4), 90, temperature=50.0, seed=1)
        async with serving(engine_of(policies)) as engine:
            response = await engine.generate(asked)
        # At this temperature the distribution is nearly uniform: repeating one draw would give few distinct tokens.
        assert len(set(response.tokens)) > 25

    run(scenario())


def test_bfloat16_weights_give_the_logprobs_of_the_bfloat16_model(policies) -> None:
    async def scenario() -> None:
        asked = request("r", tuple(range(3, 20)), 40)
        async with serving(engine_of(policies, dtype="bfloat16")) as engine:
            response = await engine.generate(asked)
        half = Policies(policies.folder)
        half.model(0).to(torch.bfloat16)
        # bfloat16 has 8 bits of mantissa, and these logits go up to about 10.
        assert list(response.logprobs) == pytest.approx(half.expected_logprobs(asked, response), abs=0.25)

    run(scenario())
