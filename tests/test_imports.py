"""What may import what, read from the source, and what starting the command line loads."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from vase_cli.cli.startup import UNUSED

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "vase_cli"

# From left to right: a module imports only from rows below its own, and a package from itself.
LINE = [
    ["cli"],
    ["calibration"],
    ["evaluation", "bench"],
    ["engine"],
    ["models"],
    ["tasks", "config"],
    ["eviction", "attention", "graders", "runs", "reports"],
    ["kernels"],
    ["randomness"],
    ["plugins", "device", "hub", "compiled_files", "tensor_files"],
    ["errors"],
]
ROW = {name: row for row, names in enumerate(LINE) for name in names}
FLAT = {"errors", "plugins", "randomness", "device", "hub", "compiled_files", "tensor_files"}

# What a room may use of the product, where that is less than its row allows.
OWN = {
    "eviction": {"eviction", "randomness", "kernels", "errors"},
    "graders": {"graders", "errors", "plugins"},
    "tasks": {"tasks", "errors", "plugins"},
    "attention": {"attention", "kernels", "errors"},
    "kernels": {"kernels", "randomness"},
    "reports": {"reports", "device", "errors"},
    "runs": {"runs", "device", "errors"},
}

# Where torch may be loaded with the module; elsewhere it waits inside a function.
WITH_TORCH = {
    "attention", "bench", "calibration", "engine", "eviction", "kernels", "models", "randomness", "tensor_files",
}  # fmt: skip
# Where torch has no place at all.
WITHOUT_TORCH = {
    "config", "errors", "evaluation", "graders", "hub", "compiled_files", "plugins", "reports", "runs", "tasks",
}  # fmt: skip
# The rest, where torch waits until a command or a device asks for it.
WAITING = {"cli", "device"}

# Who may import what of others, and whether only inside a function.
OTHERS = {
    "transformers": ({"models"}, False),
    "flash_attn": ({"attention/flash_attention_2"}, True),
    "triton": ({"kernels", "attention/triton"}, False),
    "datasets": ({"tasks/_hub"}, True),
    "filelock": ({"runs"}, True),
    "jinja2": ({"reports"}, True),
    "math_verify": ({"graders/_math_equal"}, True),
    "latex2sympy2_extended": ({"graders/_math_equal"}, True),
    "matplotlib": ({"reports"}, True),
    "platformdirs": ({"config", "compiled_files", "reports"}, True),
    "psutil": ({"device", "runs"}, True),
    "pyarrow": ({"tasks/_files"}, True),
    "pydantic": ({"config", "runs"}, False),
    "sympy": ({"graders/_math_equal"}, True),
    "huggingface_hub": ({"models", "hub", "tasks/_hub"}, True),
    "safetensors": ({"models", "tensor_files"}, True),
    "yaml": ({"config/yaml"}, False),
    "numpy": ({"reports"}, True),
}
# Modules of POSIX systems alone: none may be needed to import anything.
POSIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "tty"}
# Drawing waits inside functions too; what is shown while a run goes on is itself imported only then.
DRAWS_AT_ITS_TOP = {"cli/progress", "cli/streaming"}


class Import(NamedTuple):
    """One imported module: by whom, from which line, and whether it waits for a call or a type checker."""

    module: str  # "graders/math"
    unit: str  # "graders"
    name: str  # "vase_cli.errors"
    line: int
    lazy: bool


def read_imports() -> Iterator[Import]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        waiting = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}:{node.lineno} imports relatively"
                assert node.module is not None
                whole = node.module in ("vase_cli", *(f"vase_cli.{unit}" for unit in ROW))
                names = [f"{node.module}.{alias.name}" if whole else node.module for alias in node.names]
            for name in names:
                yield Import(module, module.partition("/")[0], name, node.lineno, node in waiting)


IMPORTS = list(read_imports())


def own_unit(name: str) -> str | None:
    """The module or package of the product that an import names; None for another's, or the bare package."""
    parts = name.split(".")
    return parts[1] if parts[0] == "vase_cli" and len(parts) > 1 else None


def test_every_room_has_its_row():
    units = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert units - {"__init__", "__main__"} == set(ROW)
    assert {path.stem for path in PACKAGE.glob("[!_]*.py")} == FLAT
    assert {"graders", "tasks", "config", "runs", "reports"} <= WITHOUT_TORCH
    assert sorted([*WITH_TORCH, *WITHOUT_TORCH, *WAITING]) == sorted(ROW)


def test_an_import_goes_only_to_the_right():
    seen = 0
    for found in IMPORTS:
        used = own_unit(found.name)
        if used is None or found.module in ("__init__", "__main__") or used == found.unit:
            continue
        seen += 1
        assert ROW[used] > ROW[found.unit], f"{found.module}:{found.line} imports {found.name}"
    assert seen > 100


@pytest.mark.parametrize("unit", OWN)
def test_plug_ins_know_little_of_the_product(unit: str):
    for found in IMPORTS:
        if found.unit == unit and (used := own_unit(found.name)) is not None:
            # A lone "import vase_cli" or its version names no unit.
            assert used in OWN[unit] or used == "__version__", f"{found.module}:{found.line} imports {found.name}"


def test_torch_is_loaded_only_where_tensors_are():
    at_the_top = set()
    for found in IMPORTS:
        if found.name.split(".")[0] != "torch":
            continue
        assert found.unit not in WITHOUT_TORCH, f"{found.module}:{found.line} imports torch"
        assert found.lazy or found.unit in WITH_TORCH, f"{found.module}:{found.line} imports torch at its top"
        at_the_top |= set() if found.lazy else {found.unit}
    assert at_the_top == WITH_TORCH


@pytest.mark.parametrize("other", OTHERS)
def test_what_others_make_is_imported_in_one_place(other: str):
    allowed, only_lazy = OTHERS[other]
    for found in IMPORTS:
        if found.name.split(".")[0] == other:
            assert {found.module, found.unit} & allowed, f"{found.module}:{found.line} imports {found.name}"
            assert found.lazy or not only_lazy, f"{found.module}:{found.line} imports {found.name} at its top"


def test_rich_is_imported_where_something_is_drawn():
    drawing = [found for found in IMPORTS if found.name.split(".")[0] == "rich"]
    assert {found.module for found in drawing if not found.lazy} <= DRAWS_AT_ITS_TOP
    names = {f"vase_cli.{module.replace('/', '.')}" for module in DRAWS_AT_ITS_TOP}
    assert not [found for found in IMPORTS if found.name in names and not found.lazy]


def test_ruff_holds_the_same_bans():
    import tomllib

    lint = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    tidy = lint["flake8-tidy-imports"]
    assert {"transformers", "flash_attn"} <= set(tidy["banned-api"])
    assert {"torch", "datasets", "math_verify"} <= set(tidy["banned-module-level-imports"])
    ignored = {name for name, rules in lint["per-file-ignores"].items() if "TID251" in rules}
    assert ignored == {"vase_cli/models/*.py", "vase_cli/attention/flash_attention_2.py", "tests/**"}


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh Python holds after ``code``."""
    code += "\nimport json, sys\nprint('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {
    "torch", "transformers", "datasets", "numpy", "pandas", "pyarrow", "math_verify", "latex2sympy2_extended", "sympy",
    "huggingface_hub", "tokenizers", "safetensors", "flash_attn", "requests", "httpx", "matplotlib", "jinja2",
}  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["eval", "--help"], ["--version"], ["tasks", "list"], ["zoo", "list"]],
    ids=str,
)
def test_the_command_line_starts_light(arguments: list[str]):
    code = f"""
from vase_cli.cli.app import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code
"""
    assert not loaded_by(code) & HEAVY


def test_a_run_loads_no_more_than_it_needs(tmp_path: Path):
    """Not what grades, draws and fetches, no compiler, and not what transformers takes along where it is installed."""
    for package in UNUSED:
        (tmp_path / f"{package}.py").write_text("raise RuntimeError('this is not needed')")
    code = """
import sys
from vase_cli.cli.app import main
try:
    main(["run", "--model", "tiny-reasoner", "--max-new-tokens", "2", "hi"])
except SystemExit as end:
    assert not end.code
assert "transformers" in sys.modules
unneeded = {"datasets", "pandas", "pyarrow", "matplotlib", "math_verify", "latex2sympy2_extended"}
assert not unneeded & set(sys.modules), unneeded & set(sys.modules)
assert "torch._inductor.compile_fx" not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rich_waits_until_something_is_drawn():
    assert "rich" not in loaded_by("import vase_cli.cli.app")


def test_rooms_without_torch_load_none():
    """All but ``evaluation``, which brings the engine with it and is imported by the commands that run it."""
    light = (WITHOUT_TORCH | WAITING) - {"evaluation"}
    modules = [
        path.relative_to(REPOSITORY).with_suffix("").as_posix().replace("/", ".")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).with_suffix("").parts[0] in light
    ]
    assert len(modules) > 40
    assert not loaded_by("\n".join(f"import {module}" for module in modules)) & HEAVY


def test_nothing_of_one_system_alone_is_imported():
    for found in IMPORTS:
        assert found.name.split(".")[0] not in POSIX_ONLY or found.lazy, (
            f"{found.module}:{found.line} imports {found.name}"
        )


def test_no_module_is_too_long_to_read():
    for path in PACKAGE.rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 400, f"{path} has {lines} lines: split it"


def test_file_names_say_what_is_in_them():
    for folder in ("vase_cli", "tests", "zoo", "recipes"):
        for path in (REPOSITORY / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                assert len(path.stem.strip("_")) > 1, path
                assert path.stem not in ("utils", "util", "misc", "common"), path
