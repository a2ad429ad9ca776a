"""What the start of a command that runs a model does beside importing, and that it undoes it."""

import ctypes
import gc
import importlib.metadata
import sys
from pathlib import Path

import pytest

from vase_cli.cli import startup
from vase_cli.cli.startup import quick_imports


@pytest.fixture
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's own way with compiled files stays as it is."""
    monkeypatch.setattr(startup, "keep_bytecode", lambda: None)


@pytest.mark.usefixtures("no_bytecode")
def test_nothing_is_searched_for_cycles_while_modules_are_made() -> None:
    with pytest.raises(KeyError), quick_imports("cpu"):
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()


@pytest.mark.usefixtures("no_bytecode")
def test_packages_that_no_text_model_needs_are_not_seen_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unneeded.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(startup, "UNUSED", ("unneeded", "pytest"))
    with quick_imports("cpu"):
        with pytest.raises(ModuleNotFoundError):
            import unneeded  # type: ignore[import-not-found]
        assert sys.modules["pytest"] is pytest, "one that is there already stays"
    import unneeded

    assert sys.modules.pop("unneeded") is unneeded
    gc.unfreeze()


@pytest.mark.usefixtures("no_bytecode")
def test_installed_packages_are_not_listed_for_a_moment() -> None:
    with pytest.raises(KeyError), quick_imports("cpu"):
        assert importlib.metadata.packages_distributions() == {}
        assert importlib.metadata.version("pytest") == pytest.__version__
        raise KeyError
    assert "pytest" in importlib.metadata.packages_distributions()
    gc.unfreeze()


class Driver:
    """Notes what the driver of CUDA devices is asked for; the first answer is its own."""

    def __init__(self, answer: int) -> None:
        self.answer, self.asked = answer, list[tuple[str, int]]()

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        self.asked.append(("init", flags))
        return self.answer

    def cuDevicePrimaryCtxRetain(self, context: object, device: int) -> int:  # noqa: N802 - likewise
        self.asked.append(("context", device))
        return 0


@pytest.mark.parametrize(
    ("device", "answer", "expected"),
    [
        ("auto", 0, [("init", 0), ("context", 0)]),
        ("cuda:1", 0, [("init", 0), ("context", 1)]),
        ("auto", 100, [("init", 0)]),
        ("cpu", 0, []),
        ("mps", 0, []),
        ("cuda:x", 0, []),
    ],
)
def test_the_driver_is_woken_for_the_device_of_the_run(
    device: str, answer: int, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    startup._wake(device)
    assert driver.asked == expected


def test_a_machine_without_the_driver_starts_as_well() -> None:
    startup._wake("cuda:no such device")
    startup._wake("auto")
