from collections.abc import Iterator

import pytest
import torch

pytest.register_assert_rewrite("engine.conformance")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Models this small lose more to waking a second thread than it computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
