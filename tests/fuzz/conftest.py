"""The same examples at each run of the suite; other ones, and as many as it names, with $VASE_FUZZ_EXAMPLES."""

import atexit
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

EXAMPLES = os.environ.get("VASE_FUZZ_EXAMPLES")

# A file of an example is written over that of the one before it, so a folder of the test function serves them all.
settings.register_profile(
    "fuzz",
    max_examples=int(EXAMPLES or 200),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fuzz")

# What it keeps of its own goes with the process, and is not left in the checkout.
_home = tempfile.TemporaryDirectory()
atexit.register(_home.cleanup)
set_hypothesis_home_dir(_home.name)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VASE_") and name != "VASE_FUZZ_EXAMPLES"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
