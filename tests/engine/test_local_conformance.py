"""The local engine under the conformance suite: both families, tied and untied, inline and overlapping."""

from __future__ import annotations

import pytest

from engine.conformance import CONTEXT, Build, EngineConformance
from engine.policies import Policies
from grpo.engine.local import LocalEngine
from support.models import make_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(make_model(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(make_model(tmp_path_factory.mktemp("qwen2"), "qwen2", tied=True))


def builder(policies: Policies, *, overlap: bool) -> Build:
    def build(running_requests: int) -> LocalEngine:
        return LocalEngine(
            "engine-0",
            policies.folder,
            running_requests=running_requests,
            max_context_length=CONTEXT,
            overlap=overlap,
            bucket_bytes=1 << 14,  # several buckets, one tensor larger than a bucket
        )

    return build


class TestLlamaInline(EngineConformance):
    @pytest.fixture
    def policies(self, llama: Policies) -> Policies:
        return llama

    @pytest.fixture
    def build(self, policies: Policies) -> Build:
        return builder(policies, overlap=False)


class TestLlamaOverlapping(TestLlamaInline):
    @pytest.fixture
    def build(self, policies: Policies) -> Build:
        return builder(policies, overlap=True)


class TestTiedQwen2Inline(EngineConformance):
    @pytest.fixture
    def policies(self, qwen2: Policies) -> Policies:
        return qwen2

    @pytest.fixture
    def build(self, policies: Policies) -> Build:
        return builder(policies, overlap=False)
