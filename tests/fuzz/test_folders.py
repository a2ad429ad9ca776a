"""Folders of runs and calibrations with one file of any content: read, or refused in one line that names the file."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers.calibrations import calibration, write_calibration
from helpers.mutations import as_json, files_of, mangled, mutated, one_line
from helpers.run_examples import a_run, a_sample, measured, open_run
from hypothesis import given
from hypothesis import strategies as st

from vase_cli import plugins
from vase_cli.calibration.folder import CalibrationState, Text, read_calibration
from vase_cli.calibration.value_statistics import ValueStatistics
from vase_cli.evaluation.regrade import regrade, store_summary
from vase_cli.graders.base import Grade
from vase_cli.runs.folder import RunFolder, StoredRun


class _InThisProcess:
    """Stands for a grader in a process of its own, which takes seconds to start."""

    def __init__(self, name: str) -> None:
        self.name = name

    def grade_both(self, gold: str, text: str, **asked: Any) -> tuple[Grade, Grade]:
        strict, published = plugins.make("graders", self.name).grade_both(gold, text, **asked)
        return strict, published

    def close(self) -> None:
        pass


@mock.patch("vase_cli.evaluation.grading.IsolatedGrader", _InThisProcess)
def run_folder() -> dict[str, bytes]:
    """The files of a run that was graded twice, but for its lock."""
    with tempfile.TemporaryDirectory() as root:
        with open_run(Path(root)) as folder:
            for problem in range(3):
                folder.append(a_sample(problem, text="So \\boxed{5}.", gold="5" if problem else "6"))
            folder.record_session(measured())
            store_summary(folder)
        regrade(folder.path)
        return {path.name: content for path, content in files_of(folder.path).items() if path.name != ".lock"}


def statistics() -> ValueStatistics:
    return ValueStatistics(2, 2, size=16)


def calibration_folder() -> dict[str, bytes]:
    """The files of a calibration, finished but for its last text."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        folder, figures = Path(name), statistics()
        write_calibration(folder, calibration(layers=2))
        state = CalibrationState(folder, figures, "abc")
        for index in range(2):
            figures.add(index, index, 3, torch.randn((2, 20, 2, 4)), whole=True)
            ids = {"prompt_token_ids": [1, 2, 3], "token_ids": [4, 5]}
            state.append(Text(index=index, id=f"a/{index}/0", problem_id=str(index), finish_reason="stop", **ids))
        state.save()
        return {path.name: content for path, content in files_of(folder).items()}


RUN, CALIBRATION = run_folder(), calibration_folder()


def contents(name: str, valid: bytes) -> st.SearchStrategy[bytes]:
    """Contents of a file of a folder, by the kind that its name says."""
    if name.endswith(".json"):
        return mutated(json.loads(valid)).map(as_json) | mangled(valid)
    if name.endswith(".jsonl"):
        records = [json.loads(line) for line in valid.splitlines()]

        def written(records: Any) -> bytes:
            lines = records if isinstance(records, list) else [records]
            return b"".join(as_json(record) + b"\n" for record in lines)

        return mutated(records).map(written) | mangled(valid)
    return mangled(valid)


def restored(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", RUN)
@mock.patch("vase_cli.evaluation.grading.IsolatedGrader", _InThisProcess)
def test_a_file_of_a_run(tmp_path: Path, name: str) -> None:
    folder, beside = tmp_path / "runs", tmp_path / "beside"
    beside.write_bytes(b"precious")

    @given(content=contents(name, RUN[name]))
    def check(content: bytes) -> None:
        restored(folder, RUN | {name: content})
        one_line(lambda: StoredRun(folder), folder / name)
        assert files_of(folder) == {folder / file: written for file, written in sorted((RUN | {name: content}).items())}

        def reopen() -> None:
            with RunFolder(folder, a_run()) as opened:
                store_summary(opened)

        one_line(reopen, folder / name, folder)
        one_line(lambda: regrade(folder), folder / name, folder)
        outside = {path: data for path, data in files_of(tmp_path).items() if folder not in path.parents}
        assert outside == {beside: b"precious"}

    check()


@pytest.mark.parametrize("name", CALIBRATION)
def test_a_file_of_a_calibration(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "calibrations"
    finished = name in ("calibration.json", "calibration.safetensors", "validation.json")

    @given(content=contents(name, CALIBRATION[name]))
    def check(content: bytes) -> None:
        restored(folder, CALIBRATION | {name: content})

        def resume() -> None:
            state = CalibrationState(folder, statistics(), "abc")
            list(state.texts())

        one_line((lambda: read_calibration(folder)) if finished else resume, folder)

    check()
