"""Held-out evaluation through the run's own engines, on one exact policy version."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean

from grpo.crash import crash_point
from grpo.engine.fleet import Fleet
from grpo.errors import RunFailed
from grpo.plan.job import JobSpec
from grpo.runtime.rollouts import response_seed
from grpo.runtime.sampler import Answers, Sampler
from grpo.types import EvalScore, Grade, Graded, Prompt, Response, SampleRequest, SamplingParams
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
        sampler: Sampler,
        waits: Waits,
        stop_token_ids: tuple[int, ...],
    ) -> None:
        self._job = job
        self._sets = sets
        self._fleet = fleet
        self._sampler = sampler
        self._waits = waits
        self._stop_token_ids = stop_token_ids

    async def run(self, version: int) -> list[EvalScore]:
        """Evaluate every set; waits for its own responses.

        The caller keeps publications away while this runs. Raises RunFailed if a response was sampled by another
        version all the same.
        """
        crash_point("evaluation.begin")
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
        response, grade = await self._ask(prompt, request, version)
        crash_point("evaluation.answered")
        return (grade.score if isinstance(grade, Graded) else 0.0), response

    async def _ask(self, prompt: Prompt, request: SampleRequest, version: int) -> tuple[Response, Grade]:
        """Return the response of the first engine that gives one, with its grade.

        Waits for an open gate, then for the response and the grade. An engine that breaks or hangs is taken out of use
        as in training, and the request goes to another one.
        """
        while True:
            # It may queue: it has to be sampled at this version, and nothing better will come.
            replica = await self._waits.until(
                "evaluation",
                f"an open gate at version {version}",
                lambda: self._fleet.place(1, min_version=version, queue=True),
                ready=lambda: self._fleet.find(min_version=version, queue=True),
            )
            answers = await self._sampler.sample(request.request_id, prompt, [request], [replica])
            if not isinstance(answers, Answers):
                continue
            (response,), (grade,) = answers.responses, answers.grades
            versions = {span.version for span in response.spans}
            if versions != {version}:
                raise RunFailed(
                    f"{request.request_id} was sampled by versions {sorted(versions)}, not {version}",
                    where=replica.name,
                )
            return response, grade
