"""Held-out evaluation through the run's own engines, on one exact policy version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from grpo.engine.fleet import Fleet, Replica
from grpo.errors import RunFailed
from grpo.plan.job import JobSpec
from grpo.rewards.grader import Grades
from grpo.runtime.response import check_response
from grpo.runtime.rollouts import response_seed
from grpo.types import EvalScore, Graded, Prompt, Response, SampleRequest, SamplingParams
from grpo.waits import Waits


class Evaluator:
    """Asks every held-out prompt and grades the answers.

    An ungraded answer counts as wrong here, and is warned of by the grader: a score must never rise because a verifier
    was down.
    """

    def __init__(
        self,
        job: JobSpec,
        sets: Mapping[str, Sequence[Prompt]],
        *,
        fleet: Fleet,
        grader: Grades,
        waits: Waits,
        decode: Callable[[tuple[int, ...]], str],
        stop_token_ids: tuple[int, ...],
    ) -> None:
        self._job = job
        self._sets = sets
        self._fleet = fleet
        self._grader = grader
        self._waits = waits
        self._decode = decode
        self._stop_token_ids = stop_token_ids

    async def run(self, version: int) -> list[EvalScore]:
        """Evaluate every set; waits for its own responses.

        The caller keeps publications away while this runs. Raises RunFailed if a response was sampled by another
        version all the same.
        """
        return [await self._one_set(name, prompts, version) for name, prompts in self._sets.items()]

    async def _one_set(self, name: str, prompts: Sequence[Prompt], version: int) -> EvalScore:
        samples = self._job.sampling.eval_samples_per_prompt
        with self._waits.doing("evaluation", f"{len(prompts) * samples} responses of {name} at version {version}"):
            answers = await asyncio.gather(
                *(
                    self._answer(name, number, prompt, sample, version)
                    for number, prompt in enumerate(prompts)
                    for sample in range(samples)
                )
            )
        return EvalScore(
            name=name,
            version=version,
            accuracy=fmean(score for score, _ in answers),
            prompts=len(prompts),
            samples=samples,
            truncated_fraction=fmean(response.truncated for _, response in answers),
            response_length_mean=fmean(len(response.tokens) for _, response in answers),
        )

    async def _answer(
        self, name: str, number: int, prompt: Prompt, sample: int, version: int
    ) -> tuple[float, Response]:
        sampling = self._job.sampling
        params = SamplingParams(
            max_tokens=self._job.batch.eval_max_response_length,
            temperature=sampling.eval_temperature,
            stop_token_ids=self._stop_token_ids,
            seed=response_seed(sampling.seed, number, sample, version),
        )
        request = SampleRequest(f"eval.{version}.{name}.{number}.{sample}", prompt.tokens, params)
        response = await self._ask(request, version)
        grade = await self._grader.grade(prompt, response, self._decode(response.tokens))
        return (grade.score if isinstance(grade, Graded) else 0.0), response

    async def _ask(self, request: SampleRequest, version: int) -> Response:
        """Return the response of the first engine that gives one; a broken engine is taken out of use.

        Waits for an open gate, then for the response.
        """
        while True:
            replica: Replica = await self._waits.until("evaluation", "an open gate", lambda: self._fleet.place(1))
            try:
                response = await replica.engine.generate(request)
                check_response(request, response, newest=version)
            except Exception as error:
                self._fleet.fail(replica, error)
                continue
            finally:
                self._fleet.release(replica, 1)
            versions = {span.version for span in response.spans}
            if versions != {version}:
                raise RunFailed(
                    f"{request.request_id} was sampled by versions {sorted(versions)}, not {version}",
                    where=replica.name,
                )
            return response
