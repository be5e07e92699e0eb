"""What a learner writes: checkpoints that continue bit for bit, and Hugging Face exports."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoTokenizer, PreTrainedModel

from grpo.crash import crash_point
from grpo.errors import RunFailed, UserError
from grpo.learner.model import no_progress_bars


def _require_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFailed(f"{folder} exists and is not an empty folder", fix="Nothing was written; name another one.")


@contextmanager
def _one_process() -> Iterator[None]:
    """torch warns that it assumes one process even when told so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


@dataclass(frozen=True)
class CapturedState:
    """A copy of a learner's state at one version: training goes on while it is written.

    Attributes:
        tensors: by name, on the CPU; nothing else refers to their memory.
    """

    version: int
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, version: int, state: Mapping[str, torch.Tensor]) -> CapturedState:
        """Copy ``state``."""
        return cls(version, {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()})

    def write(self, path: Path) -> None:
        """Write it into the new folder ``path``."""
        save_state(path, self.tensors)


def save_state(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Write named tensors with torch.distributed.checkpoint; its ``.metadata`` file comes last.

    Raises:
        RunFailed: ``folder`` exists and is not empty.
    """
    _require_new(folder)
    with _one_process():
        save(state, checkpoint_id=folder, no_dist=True)


def load_state(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Fill the tensors of ``state``, in place, with what :func:`save_state` wrote under the same names.

    Raises:
        UserError: ``folder`` holds no whole checkpoint, or one of another model.
    """
    if not (folder / ".metadata").is_file():
        raise UserError(f"{folder} holds no complete learner checkpoint")
    written = FileSystemReader(folder).read_metadata().state_dict_metadata
    shapes = {name: getattr(metadata, "size", None) for name, metadata in written.items()}
    if shapes != {name: tensor.shape for name, tensor in state.items()}:
        raise UserError(f"the checkpoint in {folder} is of another model", fix="Resume with the model it began with.")
    try:
        with _one_process():
            load(state, checkpoint_id=folder, no_dist=True)
    except (CheckpointException, OSError) as error:
        raise UserError(f"cannot read the checkpoint in {folder}: {str(error).splitlines()[0]}") from error


def export_hf(folder: Path, model: PreTrainedModel, source: Path) -> None:
    """Write weights (safetensors), config and generation config, and the tokenizer of the folder ``source``.

    The folder gets its name when it is whole.

    Raises:
        RunFailed: ``folder`` exists and is not empty.
        UserError: ``source`` has no tokenizer that loads.
    """
    _require_new(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{source} has no tokenizer: {str(error).splitlines()[0]}", where="model.source") from error
    aside = folder.with_name(f".partial-{folder.name}")
    if aside.exists():  # ours, from a process that was killed here
        shutil.rmtree(aside)
    aside.mkdir(parents=True)
    with no_progress_bars():
        model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    crash_point("export.aside")
    aside.rename(folder)
