"""What is trained, on what, and where it goes: [model], [conversion], [output], [data], [training], [evaluation]."""

from typing import Annotated, Any, Literal

from grpo.config.schema_base import Section, Unsupported, key

_OLMO_CORE = "the olmo_core trainer and its checkpoints are not built yet; give a Hugging Face folder"
_BACKGROUND = "background evaluation is not built yet; held-out data is evaluated by the run's own engines"


class Model(Section):
    """The starting policy."""

    source: str | None = key(
        None,
        "Folder of the starting policy, relative to the run file, or builtin:NAME for one that ships with grpo.",
        min_length=1,
    )
    plan_config: str | None = key(
        None,
        "config.json, or builtin:NAME, whose shape plan and validate use where model.source cannot be seen, as on a "
        "laptop that submits to a cluster. A run always reads the folder itself.",
        min_length=1,
    )
    format: Annotated[Literal["hf", "olmo_core"], Unsupported(_OLMO_CORE, values=("olmo_core",))] = key(
        "hf", "What the folder holds: hf is a Hugging Face model folder."
    )
    hf_template: Annotated[str | None, Unsupported(_OLMO_CORE)] = key(
        None, "Hugging Face folder with config and tokenizer for an olmo_core checkpoint."
    )


class Conversion(Section):
    """Conversion of an olmo_core checkpoint before the run."""

    hf_output: Annotated[str | None, Unsupported(_OLMO_CORE)] = key(None, "Where the converted folder is written.")


class Output(Section):
    """Where the run writes."""

    root: str | None = key(
        None, "A fresh folder for everything the run writes, relative to the run file.", min_length=1
    )
    export_hf: bool = key(False, "Write the final policy as a Hugging Face folder.")
    hf_dir: str | None = key(None, "Folder of that export.", derived="output.root/export-hf", min_length=1)
    rollout_sample_rate: float = key(
        0.0, "Fraction of groups whose prompts, responses and rewards are captured whole; 0 is off.", ge=0, le=1
    )


class Task(Section):
    """One entry of [[data.tasks]]: a named task with its number of prompts."""

    task: str = key(..., "Name of the task.", min_length=1)
    train_count: int = key(..., "Training prompts taken from the task.", unit="prompts", ge=0)
    eval_count: int = key(0, "Held-out prompts taken from the task.", unit="prompts", ge=0)
    prompt_wrapper: Annotated[
        Literal["none", "auto", "open_instruct_rlzero_answer"],
        Unsupported("prompt wrappers are not built yet; only none is", values=("auto", "open_instruct_rlzero_answer")),
    ] = key("none", "Template put around a prompt: none leaves it to the chat template of the model.")


class Data(Section):
    """Prompts. Exactly one of tasks, prompt_data and rl_manifest."""

    tasks: list[Task] | None = key(None, "Named tasks, as [[data.tasks]] entries.")
    rl_manifest: Annotated[str | None, Unsupported("manifests of RL data are not built yet; use prompt_data")] = key(
        None, "Manifest of RL data."
    )
    prompt_data: str | None = key(
        None, "JSONL file of training prompts, relative to the run file: messages or prompt, ground_truth, verifier."
    )
    eval_prompt_data: list[str] | None = key(
        None, "Held-out JSONL files, as alternating name and path; needs prompt_data."
    )
    reward_config: Annotated[
        str | None, Unsupported("reward files are not built yet; name the verifier in each row of prompt_data")
    ] = key(None, "Reward configuration file.")
    seed: int = key(17, "Seed of task generation and of the order of prompts.", ge=0, lt=2**63)
    shuffle: bool = key(True, "Draw prompts in a seeded random order, a new one each epoch; else in file order.")


class Training(Section):
    """Length of the run, the group filter, the loss, and when to evaluate and save."""

    num_rollouts: int = key(100, "Length of the run.", unit="collections", ge=1)
    filter_zero_std_groups: bool = key(
        True,
        "Drop a group whose counting rewards do not vary before it takes a batch slot; generation refills the batch. "
        "Needs samples_per_prompt > 1.",
    )
    max_train_rollout_logprob_abs_diff: Annotated[
        float | None, Unsupported("stopping on engine-learner disagreement is not built yet")
    ] = key(None, "Stop when the mean absolute engine-learner log-prob difference is above this.", unit="nats")
    skip_eval_before_train: bool = key(False, "Skip the evaluation of version 0.")
    eval_interval: int | None = key(
        None, "Collections between evaluations.", unit="collections", derived="20 when held-out data exists", ge=1
    )
    save_checkpoints: bool = key(True, "Write checkpoints.")
    save_interval: int | None = key(
        None, "Collections between checkpoints.", unit="collections", derived="only the final one", ge=1
    )
    policy_loss: Literal["ppo", "cispo", "gspo"] = key(
        "ppo", "Policy loss: ppo clips the token ratio, cispo clips its weight, gspo clips the sequence ratio."
    )
    loss_denominator: Literal["token", "response", "constant"] = key(
        "token",
        "What the summed loss of an optimizer step is divided by: token is one global count of loss tokens, response "
        "is a mean over responses of token means, constant is responses times max_response_length.",
    )
    ungraded: Literal["zero", "exclude", "raise"] = key(
        "exclude",
        "A response whose verifier could not decide: exclude leaves it out of baseline and loss, zero counts it as "
        "reward 0, raise stops the run.",
    )
    ungraded_window: int = key(256, "Latest responses over which ungraded ones are counted.", unit="responses", ge=1)
    ungraded_limit: float = key(
        0.5, "Fraction of ungraded responses in that window above which the run stops; 1 is off.", ge=0, le=1
    )
    max_group_attempts: int = key(3, "Times a group is generated before it is given up.", unit="attempts", ge=1)
    starvation_groups: int | None = key(
        None,
        "Groups that may end one after another without one that can be trained; then the run stops with the counts.",
        unit="groups",
        derived="20 x rollout_batch_size",
        ge=1,
    )


class Evaluation(Section):
    """Evaluation on held-out data."""

    mode: Annotated[Literal["shared", "background"], Unsupported(_BACKGROUND, values=("background",))] = key(
        "shared", "shared evaluates through the run's own engines, on one exact policy version."
    )
    interval: int | None = key(None, "Same as training.eval_interval.", unit="collections", ge=1)
    initial: bool | None = key(None, "Evaluate version 0.", derived="true unless training.skip_eval_before_train")
    final: bool = key(True, "Evaluate the last version.")
    tasks: Annotated[list[Any] | None, Unsupported(_BACKGROUND)] = key(None, "Tasks of background evaluation.")
    gpus: Annotated[int | None, Unsupported(_BACKGROUND)] = key(None, "GPUs of background evaluation.", unit="GPUs")
    cluster: Annotated[Any, Unsupported(_BACKGROUND)] = key(None, "Cluster of background evaluation.")
    image: Annotated[str | None, Unsupported(_BACKGROUND)] = key(None, "Image of background evaluation.")
    revision: Annotated[str | None, Unsupported(_BACKGROUND)] = key(None, "Revision of background evaluation.")
    timeout: Annotated[Any, Unsupported(_BACKGROUND)] = key(None, "Time limit of background evaluation.")
    submit_timeout: Annotated[Any, Unsupported(_BACKGROUND)] = key(None, "Time limit of its submission.")
    server_args: Annotated[Any, Unsupported(_BACKGROUND)] = key(None, "Server arguments of background evaluation.")
