"""Which tests can run here, and the poison that makes an unwritten output show."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores already

import hypothesis
import pytest
import torch

# Examples are the same on every run, however slow the machine; `make fuzz` draws new ones.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    max_examples=20,
    print_blob=True,
)
# Whether any example fails is all that mutants ask, so none is made simpler.
hypothesis.settings.register_profile(
    "mutants", hypothesis.settings.get_profile("tests"), phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


def pytest_collection_modifyitems(items):
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for item in items:
        if item.get_closest_marker("interpreter") and not interpreted:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1 in a process of its own"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """Fills what torch.empty returns with NaN or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
