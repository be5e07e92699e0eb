"""The endless stream of training prompts, with a cursor that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo.data.permutation import Permutation
from grpo.errors import UserError
from grpo.types import Prompt


@dataclass(frozen=True, slots=True)
class SourceState:
    """The cursor: ``position`` prompts of epoch ``epoch`` (from 0) have been drawn."""

    epoch: int
    position: int


class PromptSource:
    """Draws prompts for ever; each epoch draws every prompt exactly once.

    With ``shuffle`` each epoch has an order of its own, which depends on ``seed``, the epoch and the number of prompts
    only. So the cursor is two integers, and a restored source goes on with the very prompts that the first would have
    drawn. Without it, every epoch is in the order of ``prompts``.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool) -> None:
        if not prompts:
            raise UserError("there are no training prompts")
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._move(SourceState(0, 0))

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        return self.next()

    def next(self) -> Prompt:
        """Draw the next prompt."""
        index = self._position if self._order is None else self._order[self._position]
        prompt = self._prompts[index]
        wrapped = self._position + 1 == len(self._prompts)
        if wrapped:
            self._move(SourceState(self._epoch + 1, 0))
        else:
            self._position += 1
        return prompt

    def by_id(self) -> dict[str, Prompt]:
        """Return every prompt by its id."""
        return {prompt.id: prompt for prompt in self._prompts}

    def state(self) -> SourceState:
        """Return the cursor: where :meth:`next` will draw from."""
        return SourceState(self._epoch, self._position)

    def restore(self, state: SourceState) -> None:
        """Go to where :meth:`state` was taken, on a source over the same prompts, seed and ``shuffle``.

        Raises:
            UserError: there is no such place, so the prompts cannot be the same.
        """
        if state.epoch < 0 or not 0 <= state.position < len(self._prompts):
            raise UserError(
                f"the checkpoint stopped at prompt {state.position} of epoch {state.epoch}, but the data now has "
                f"{len(self._prompts)} prompts",
                fix="Resume with the data that the run was started with.",
            )
        self._move(state)

    def _move(self, state: SourceState) -> None:
        self._epoch, self._position = state.epoch, state.position
        self._order = Permutation(len(self._prompts), self._seed, self._epoch) if self._shuffle else None
