"""The page of a calibration and its pictures as files of its folder."""

from pathlib import Path

import pytest
from helpers.calibrations import calibration, write_calibration

from vase_cli.cli.calibrate import write_page
from vase_cli.errors import VaseError
from vase_cli.reports.calibration_page import PAGE_FILE, PICTURE_FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_calibration(tmp_path, calibration())
    return tmp_path


def test_the_files_are_written_the_page_first_and_again_the_same(folder: Path):
    before = {path.name for path in folder.iterdir()}
    paths = write_page(folder)
    assert [path.name for path in paths] == [PAGE_FILE, *PICTURE_FILES]
    contents = [path.read_bytes() for path in paths]
    assert contents == [path.read_bytes() for path in write_page(folder)]
    assert {path.name for path in folder.iterdir()} == before | {path.name for path in paths}


def test_a_picture_without_data_is_removed(folder: Path):
    write_page(folder)
    (folder / "validation.json").unlink()
    names = [path.name for path in write_page(folder)]
    assert "validation.png" not in names and not (folder / "validation.png").exists()


@pytest.mark.parametrize("picture", ["thought.png", "validation.png"])
def test_a_folder_that_cannot_be_written_is_one_line(folder: Path, picture: str):
    (folder / "validation.json").unlink()
    (folder / picture).mkdir()
    (folder / picture / "file").touch()
    with pytest.raises(VaseError, match=f"cannot .*{picture}") as caught:
        write_page(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_its_files_is_one_line(folder: Path):
    (folder / "calibration.safetensors").unlink()
    with pytest.raises(VaseError) as caught:
        write_page(folder)
    assert "\n" not in str(caught.value)
