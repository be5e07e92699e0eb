"""Pass-through keys of the engines, checked against the pinned versions without an engine installed."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from grpo.config import derive
from grpo.config.engine_args import ENGINES, OWN, engine_list
from grpo.config.settings import Settings

Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vllm_max_num_seqs", "256", ""),
        ("vllm_gpu_memory_utilization", "1", ""),  # an integer may be a float
        ("vllm_hf_overrides", "{ a = 1 }", ""),
        ("sglang_attention_backend", '"fa3"', ""),
        ("sglang_server_concurrency", "64", ""),
        ("vllm_max_num_seqs", "2.5", "must be an integer, not 2.5"),
        ("vllm_max_num_seqs", "true", "must be an integer, not true"),
        ("vllm_enforce_eager", "1", "must be true or false, not 1"),
        ("sglang_mem_fraction_static", '"0.8"', 'must be a number, not text "0.8"'),
        (
            "vllm_max_num_seq",
            "256",
            "vllm 0.26.0 has no argument 'max_num_seq'. Did you mean vllm_max_num_seqs?",
        ),
        (
            "sglang_server_concurency",
            "8",
            "sglang 0.5.17 has no argument 'server_concurency'. Did you mean sglang_server_concurrency?",
        ),
        ("sglang_xyzzy", "1", "sglang 0.5.17 has no argument 'xyzzy'"),
        (
            "sglang_cuda_graph_backend_decode",
            '"ful"',
            'must be one of "full", "breakable", "tc_piecewise", "disabled", not text "ful". Did you mean "full"?',
        ),
        (
            "sglang_tp_size",
            "2",
            "is set by the run itself. Set inference.rollout_tensor_parallel_size instead.",
        ),
        ("vlm_max_num_seqs", "256", "unknown key. Did you mean vllm_max_num_seqs?"),
    ],
)
def test_a_key_of_an_engine_is_checked_by_name_type_and_choice(
    problems: Problems, key: str, value: str, message: str
) -> None:
    backend = "sglang" if key.startswith("sglang") else "vllm"
    found = problems(f'[inference]\nbackend = "{backend}"\n{key} = {value}\n')
    assert found.pop(0).startswith(
        f'run.toml:2 inference.backend: "{backend}": the vllm and sglang engines are not built'
    )
    assert found == ([f"run.toml:3 inference.{key}: {message}"] if message else [])


def test_a_key_of_an_engine_elsewhere_says_where_it_belongs(problems: Problems) -> None:
    assert problems("[miles]\nsglang_enable_metrics = true") == [
        "run.toml:2 miles.sglang_enable_metrics: unknown key. It belongs in [inference]."
    ]


def test_a_key_of_another_engine_is_refused(problems: Problems) -> None:
    text = '[inference]\nbackend = "local"\nvllm_max_num_seqs = 8\nradix_cache = true\n'
    assert problems(text) == [
        "run.toml:3 inference.vllm_max_num_seqs: only the vllm engine takes it, and inference.backend is local. Remove "
        'it, or set inference.backend = "vllm".',
        "run.toml:4 inference.radix_cache: only the sglang engine takes it, and inference.backend is local. Remove it, "
        'or set inference.backend = "sglang".',
    ]


def test_the_engine_is_the_one_whose_keys_are_given(settings: Callable[..., Settings]) -> None:
    for text, backend, place in (
        ("", "local", "disaggregated"),
        ("[inference]\nsglang_enable_metrics = true", "sglang", "colocated"),
        ("[inference]\nvllm_enforce_eager = true", "vllm", "colocated"),
        ("[inference]\nradix_cache = false", "sglang", "colocated"),
        ('[inference]\nbackend = "local"', "local", "disaggregated"),
    ):
        found = settings(text)
        assert (derive.engine_backend(found).value, derive.placement_mode(found).value) == (backend, place), text


def test_options_of_the_engine_are_what_was_given_without_its_name(settings: Callable[..., Settings]) -> None:
    found = settings(
        "[inference]\nsglang_mem_fraction_static = 0.8\nradix_cache = false\nenable_mixed_chunk = true\n"
        "sglang_server_concurrency = 64\nsglang_max_running_requests = 128\ngpus = 4\n"
        "placement_mode = 'disaggregated'\n[async]\nfully_async = true\n"
    )
    assert derive.engine_options(found).value == {
        "disable_radix_cache": True,
        "enable_mixed_chunk": True,
        "max_running_requests": 128,
        "mem_fraction_static": 0.8,
    }
    # The smaller of the two limits; twice what the four engines run at a time are 2 x 4 x 64 responses = 64 groups
    # of 8, and the lag allows (6 + 1) x 8 = 56.
    assert derive.running_requests(found).value == 64
    assert derive.max_groups_in_system(found).value == 56
    assert derive.running_requests(settings("[inference]\nvllm_max_num_seqs = 9")).value == 9
    assert derive.running_requests(settings("[inference]\nlocal_running_requests = 7")).value == 7


def test_the_concurrency_of_the_servers_bounds_the_groups_in_the_system(settings: Callable[..., Settings]) -> None:
    text = (
        "[async]\nfully_async = true\n[inference]\nplacement_mode = 'disaggregated'\nsglang_server_concurrency = 80\n"
    )
    # 2 x 1 engine x 80 responses = 160 = 20 groups of 8; (6 + 1) x 8 = 56 by lag.
    assert derive.max_groups_in_system(settings(text)).value == 20
    assert derive.max_groups_in_system(settings(text, "async.async_max_concurrent_samples=248")).value == 31


def test_the_lists_are_those_of_the_pinned_versions_and_hold_what_runs_use() -> None:
    assert {engine: engine_list(engine)["version"] for engine in ENGINES} == {"vllm": "0.26.0", "sglang": "0.5.17"}
    documented = {
        *("max_running_requests", "max_total_tokens", "mem_fraction_static", "cuda_graph_backend_decode"),
        *("cuda_graph_max_bs_decode", "cuda_graph_backend_prefill", "sampling_backend", "attention_backend"),
        *("max_mamba_cache_size", "chunked_prefill_size", "enable_metrics", "mamba_radix_cache_strategy"),
    }
    assert documented <= set(engine_list("sglang")["arguments"])
    for engine in ENGINES:
        listing = engine_list(engine)
        assert set(OWN[engine]) <= set(listing["arguments"])
        assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"} <= set(listing["architectures"])
        for name, argument in listing["arguments"].items():
            assert argument["types"] and set(argument["types"]) <= {
                "int",
                "float",
                "str",
                "bool",
                "list",
                "dict",
                "any",
            }
            default = argument.get("default")
            if default is not None and "choices" in argument:
                assert default in argument["choices"], f"{engine} {name}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return ``scripts/engine_args.py``."""
    path = Path(__file__).parents[2] / "scripts" / "engine_args.py"
    spec = importlib.util.spec_from_file_location("engine_args_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SERVER_ARGS = '''
CHOICES = ["a", "b"]
@dataclasses.dataclass
class ServerArgs:
    """Doc."""
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    load_format: A[str, Arg(help="x", choices=CHOICES)] = "a"
    size: A[Optional[int], "x"] = None
    rate: float = 0.5
    names: Optional[List[str]] = None
    mode: Literal["x", "y"] = "x"
    both: Union[Literal["x"], str] = "x"
    table: Dict[str, int] = dataclasses.field(default_factory=dict)
    _hidden: int = 1
'''


def test_the_script_reads_a_list_from_a_wheel_without_importing_it(script: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("sglang/srt/server_args.py", f"import nothing_of_that_name\n{SERVER_ARGS}")
        file.writestr("sglang/srt/models/m.py", "EntryClass = [AForCausalLM, AModel]\n")
    engine, text = script.read_wheel(wheel)
    import json

    assert engine == "sglang"
    assert json.loads(text) == {
        "engine": "sglang",
        "version": "9.9",
        "arguments": {
            "both": {"types": ["str"], "default": "x"},
            "load_format": {"types": ["str"], "default": "a", "choices": ["a", "b"]},
            "mode": {"types": ["str"], "default": "x", "choices": ["x", "y"]},
            "model_path": {"types": ["str"]},
            "names": {"types": ["list"], "default": None},
            "rate": {"types": ["float"], "default": 0.5},
            "size": {"types": ["int"], "default": None},
            "table": {"types": ["dict"]},
        },
        "architectures": ["AForCausalLM"],
    }
