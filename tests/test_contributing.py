"""The examples of CONTRIBUTING.md do what it says, and the documents name nothing that is not there."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.cli_examples import Shell, open_shell
from helpers.engines import generate_with_lists, load_model, make_engine, make_requests, token_ids
from helpers.plug_ins import files_in_rooms, installed_package
from helpers.views import CANDIDATES, KEPT, make_view

from vase_cli import plugins
from vase_cli.config.method_options import make_method
from vase_cli.config.schema import Recipe
from vase_cli.engine.engine import Engine
from vase_cli.errors import ConfigError
from vase_cli.tasks.base import resolve_tasks

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "vase_cli"
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
_BLOCK = re.compile(r"^```(?P<language>\w+)(?: (?P<path>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = {"eviction": "key-norm", "tasks": "products", "graders": "words", "attention": "eager"}
MODEL = "smollm2-135m"


class Section(NamedTuple):
    """A section of CONTRIBUTING.md: the files that its blocks are, by path, and the commands under them."""

    files: dict[str, str]
    commands: list[str]


def sections() -> dict[str, Section]:
    """By heading, the sections that hold blocks."""
    found = {}
    for part in CONTRIBUTING.read_text(encoding="utf-8").split("\n## ")[1:]:
        blocks = list(_BLOCK.finditer(part))
        files = {block["path"]: block["text"] for block in blocks if block["path"]}
        commands = [line for block in blocks if block["language"] == "sh" for line in block["text"].splitlines()]
        if blocks:
            found[part.partition("\n")[0]] = Section(files, commands)
    return found


SECTIONS = sections()
PACKAGED = SECTIONS.pop("From a package of your own")
FILES = {path: text for section in SECTIONS.values() for path, text in section.files.items()}
MODULES = [path for path in FILES if path.startswith("vase_cli/")]
COMMANDS = [(heading, command) for heading, section in SECTIONS.items() for command in section.commands]


def module_of(group: str) -> str:
    """The path of the example of a group."""
    (path,) = [path for path in MODULES if Path(path).parent.name == group]
    return path


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples' files where a contributor puts them, below a folder of their own."""
    root = tmp_path / "checkout"
    write_files(root)
    with files_in_rooms(root, monkeypatch, MODULES):
        yield root


@pytest.fixture
def vase(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("VASE_PATH", str(examples))
    for path, text in FILES.items():
        if "/" not in path:
            Path(path).write_text(text)
    return shell


def write_files(root: Path) -> None:
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_there_is_an_example_of_everything_that_is_one_file() -> None:
    assert {group: Path(module_of(group)).stem.replace("_", "-") for group in NAMES} == NAMES
    assert {f"{kind}/{MODEL}.yaml" for kind in ("zoo", "recipes")} <= FILES.keys()
    assert len(COMMANDS) >= 2 * len(NAMES)
    assert all(section.commands for section in SECTIONS.values())


@pytest.mark.parametrize(("heading", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_command_does_what_it_says(vase: Shell, heading: str, command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "vase"
    evaluates = arguments[0] == "eval"
    outcome = vase(*arguments, *(["--json"] if evaluates else []))
    assert outcome.code == 0, outcome.err
    if not evaluates:
        assert any(name in outcome.out for name in (*NAMES.values(), MODEL))
        return
    (summary,) = map(json.loads, outcome.out.splitlines())
    assert (summary["complete"], summary["samples"], summary["overall"]["error_share"]) == (True, 2, 0.0)
    assert (summary["overall"]["mean_cuts"] > 0) == ("--budget" in arguments)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with the examples in it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("vase_cli", "tests", "zoo", "recipes"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    write_files(root)
    return root


def test_the_tests_of_the_house_take_the_examples_up(checkout: Path) -> None:
    """What CONTRIBUTING.md says is tested by itself, but for the engine's tests, which take minutes."""
    named = [*NAMES.values(), MODEL]
    tests = ("eviction", "tasks/test_tasks.py", "graders/test_graders.py", "config/test_zoo.py", "test_plugins.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-k", " or ".join([*(f"[{name}" for name in named), "names_are_those", "every_name_loads"])),
            *(f"tests/{name}" for name in tests),
        ],
        cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line for line in done.stdout.splitlines() if " PASSED" in line]
    for name, least in {"key-norm": 15, "products": 8, "words": 1, MODEL: 3, "attention": 2}.items():
        assert len([line for line in passed if f"[{name}" in line]) >= least, name


def test_the_examples_are_written_as_the_house_writes(checkout: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, "--no-cache", *MODULES], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- what each example computes -----------------------------------------------------------------------------


@pytest.mark.usefixtures("examples")
def test_the_method_keeps_the_shortest_keys() -> None:
    method, view = plugins.load("eviction", NAMES["eviction"]), make_view()
    kept, finite = method(sinks=0).select(view)
    expected = view.candidate_keys.norm(dim=-1).topk(KEPT, largest=False).indices.sort(dim=-1).values
    assert finite.all() and torch.equal(kept[..., :KEPT], expected)
    view.keys[:, :4] *= 1e3
    assert (method().select(view)[0][..., :4] == torch.arange(4)).all() and CANDIDATES > KEPT


@pytest.mark.usefixtures("examples")
def test_the_method_makes_the_texts_of_a_cache_of_plain_lists(model_folder: Callable[..., Path]) -> None:
    model = load_model(model_folder("qwen3"))
    policy = make_method(Recipe("own", "tiny", method=NAMES["eviction"], method_options={"sinks": 1}))
    requests = [make_requests()[index] for index in (1, 3)]
    got = token_ids(make_engine(model, policy, max_new_tokens=20), requests)
    for request in requests:
        tokens, cuts, _ = generate_with_lists(model, policy, 16, 4, request, 20)
        assert got[request.id] == tokens and cuts
    with pytest.raises(ConfigError, match="sinks is -1"):
        make_engine(model, type(policy)(sinks=-1))


@pytest.mark.usefixtures("examples")
def test_the_task_has_problems_that_its_grader_finds_right() -> None:
    (task,) = resolve_tasks([NAMES["tasks"]])
    problems = task.problems(limit=3).problems
    with plugins.load("graders", task.grader)() as grader:
        for problem in problems:
            first, second = map(int, re.findall(r"\d+", problem.prompt)[:2])
            assert grader.grade(problem.answer, f"\\boxed{{{first * second}}}").status == "correct"
            assert grader.grade(problem.answer, f"It is {first * second}.", fallbacks=task.fallbacks).rule
            assert grader.grade(problem.answer, f"\\boxed{{{first * second + 1}}}").status == "wrong"


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (r"\boxed{washington,  d.c.}", "correct"),
        (r"\boxed{Washington, D.C}", "correct"),
        (r"\boxed{Washington}", "wrong"),
        (r"\boxed{Paris}", "wrong"),
        ("Washington, D.C.", "no_answer"),
        (r"<think>\boxed{Washington, D.C.}", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_the_grader_grades(text: str, status: str) -> None:
    with plugins.load("graders", NAMES["graders"])() as grader:
        assert grader.grade("Washington, D.C.", text).status == status
        assert grader.grade(" ", text).status == "error"


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("group", [1, 3])
def test_the_backend_computes_what_sdpa_does(dtype: torch.dtype, tolerance: float, group: int) -> None:
    ours, sdpa = plugins.load("attention", NAMES["attention"])(), plugins.load("attention", "sdpa")()
    generator = torch.Generator().manual_seed(0)

    def states(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    prompt = states(33, 2 * group, 16), states(33, 2, 16), states(33, 2, 16)
    torch.testing.assert_close(ours.prefill(*prompt, 0.3), sdpa.prefill(*prompt, 0.3), rtol=tolerance, atol=tolerance)
    held = torch.tensor([1, 0, 71, 34], dtype=torch.int32)
    step = states(4, 2 * group, 16), states(4, 71, 2, 16), states(4, 71, 2, 16), held
    for longest in (71, None):
        out = ours.decode(*step, longest, 0.3)
        torch.testing.assert_close(out, sdpa.decode(*step, longest, 0.3), rtol=tolerance, atol=tolerance)
        assert out.dtype == dtype and not out[1].any()


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_the_backend_makes_the_tokens_of_sdpa(method: str, model_folder: Callable[..., Path]) -> None:
    model, requests = load_model(model_folder("qwen3")), make_requests()[:4]
    built_in = make_engine(model, method, max_new_tokens=16)
    ours = plugins.load("attention", NAMES["attention"])()
    own = Engine(model, plugins.load("eviction", method)(), ours, built_in.settings)
    assert token_ids(own, requests) == token_ids(built_in, requests)


def test_a_package_of_ones_own_adds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads(PACKAGED.files["pyproject.toml"])["project"]
    groups: dict[str, dict[str, str]] = project["entry-points"]
    package = project["name"].replace("-", "_")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
    ]
    modules = {f"{package}/{Path(path).name}": FILES[path] for path in MODULES} | {f"{package}/__init__.py": ""}
    assert {f"vase.{group}": [name] for group, name in NAMES.items()} == {key: [*groups[key]] for key in groups}
    with installed_package(tmp_path, monkeypatch, package, modules, "\n".join(lines)):
        for group, name in NAMES.items():
            assert name in plugins.names(group)
            found: Any = plugins.load(group, name)
            assert getattr(found, "__module__", "").startswith((package, "vase_cli.tasks"))
            assert getattr(found, "name", name) == name
    assert not set(NAMES.values()) & {name for group in NAMES for name in plugins.names(group)}


# --- what the documents name --------------------------------------------------------------------------------


DOCUMENTS = [CONTRIBUTING, ARCHITECTURE]
_SUFFIXES = (".py", ".md", ".toml", ".txt", ".yaml", ".jsonl", ".json")


def quoted(document: Path) -> set[str]:
    """What stands between backticks outside of blocks, and what is linked to."""
    text = _BLOCK.sub("", document.read_text(encoding="utf-8"))
    return {*re.findall(r"`([^`\n]+)`", text), *re.findall(r"\]\((?!https:)([^)]+)\)", text)}


def words_of(*folders: str) -> set[str]:
    """Every word of the Python files of some folders."""
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    return {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_path_it_names_exists(document: Path) -> None:
    stored = {"run.json", "completions.jsonl", "grades.jsonl", "sessions.jsonl", "summary.json"}  # in a run's folder
    paths = {
        name for name in quoted(document)
        if re.fullmatch(r"[\w./-]+", name) and ("/" in name or name.endswith(_SUFFIXES)) and name not in stored
    }  # fmt: skip
    missing = sorted(
        name for name in paths
        if name not in FILES and not any((base / name).exists() for base in (REPOSITORY, PACKAGE, document.parent))
    )  # fmt: skip
    assert len(paths) > 10 and not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_test_it_names_exists(document: Path) -> None:
    defined = {
        name for path in (REPOSITORY / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }  # fmt: skip
    named = {name for name in quoted(document) if re.fullmatch(r"test_\w+", name)}
    assert named and not sorted(named - defined)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_name_of_the_code_it_uses_exists(document: Path) -> None:
    dotted = {name for name in quoted(document) if re.fullmatch(r"[A-Za-z_][\w.]*(\([\w, ]*\))?", name)}
    used = {part for name in dotted if not name.endswith(_SUFFIXES) for part in re.findall(r"\w+", name)}
    mine = {word for text in FILES.values() for word in re.findall(r"\w+", text)}
    assert len(used) > 10 and not sorted(used - words_of("vase_cli", "tests") - mine)


@pytest.mark.parametrize(("group", "path"), [("graders", "cli/evaluate.py"), ("attention", "cli/options.py")])
def test_what_is_listed_by_hand_is_listed_where_it_says(group: str, path: str) -> None:
    assert f"vase_cli/{path}" in quoted(CONTRIBUTING)
    text = (PACKAGE / path).read_text(encoding="utf-8")
    listed = re.search(r'"([^"]*(?:choice, integer|flash_attention_2)[^"]*)"', text)
    assert listed is not None and set(plugins.names(group)) <= set(re.findall(r"\w+", listed[1]))


def constant(name: str) -> Any:
    """A constant of the tests of imports, read from their source."""
    tree = ast.parse((REPOSITORY / "tests" / "test_imports.py").read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )


def test_the_line_is_the_one_that_the_tests_hold() -> None:
    drawn = re.search(r"^    cli → .*(?:\n    .*)*", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    assert drawn is not None
    assert [row.split(" · ") for row in " ".join(drawn[0].split()).split(" → ")] == constant("LINE")


def test_the_table_of_rooms_names_every_room_and_what_it_may_import() -> None:
    table = ARCHITECTURE.read_text(encoding="utf-8").partition("| room |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    rooms = [row[0].strip("`") for row in rows]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(rooms) == packages | {path.stem for path in PACKAGE.glob("[!_]*.py")}
    assert rooms == [room for row in constant("LINE") for room in row]
    for room, (*_, may_import) in zip(rooms, rows, strict=True):
        narrower = constant("OWN").get(room)
        if narrower is not None:
            assert set(re.findall(r"`(\w+)`", may_import)) == narrower - {room}
