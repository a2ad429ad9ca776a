"""``vase`` itself: its help, its usage errors, and what starting it imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli_examples import Shell, clean_environment, open_shell, terminal

import vase_cli
from vase_cli.cli.app import COMMANDS, load_command
from vase_cli.cli.options import BENCHMARK, Overrides
from vase_cli.cli.output import echo, print_json, print_notes, print_tables
from vase_cli.config.resolve import RECIPE_KEYS
from vase_cli.config.schema import SAMPLING_KEYS
from vase_cli.errors import ConfigError
from vase_cli.reports.tables import Table


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return open_shell(tmp_path, monkeypatch, capsys)


def process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env=clean_environment(folder)
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command = load_command(name)
    assert " ".join(command.help.partition("\n\n")[0].split()) == COMMANDS[name]


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("--help", set()),
        ("--version", set()),
        ("evla", set()),
        ("methods list", {"cli.methods", "cli.output", "eviction", "plugins", "reports.tables"}),
    ],
)
def test_only_what_a_command_needs_is_imported(tmp_path: Path, line: str, modules: set[str]) -> None:
    code = f"""
import json, sys
from vase_cli.cli.app import main
try:
    main({line.split()!r})
except SystemExit:
    print("\\n" + json.dumps(sorted(sys.modules)))
"""
    loaded = json.loads(process(tmp_path, "-c", code).stdout.splitlines()[-1])
    own = {name.removeprefix("vase_cli.") for name in loaded if name.startswith("vase_cli.")}
    assert own == {"cli", "cli.app", "errors", "reports", "reports.characters"} | modules
    assert not {"torch", "pydantic", "yaml"} & set(loaded)


def test_the_package_is_a_command(tmp_path: Path) -> None:
    assert process(tmp_path, "-m", "vase_cli", "--version").stdout.startswith("vase ")


def test_shared_options_are_keys_of_a_recipe() -> None:
    nothing = dict.fromkeys(Overrides().changes())
    changes = Overrides(seed=3, method_options=["sinks=2"], slots="4").changes(limit=5)
    assert changes == nothing | {"seed": 3, "method_options": {"sinks": 2}, "slots": 4, "limit": 5}
    assert set(nothing) <= {*RECIPE_KEYS, *SAMPLING_KEYS}


def test_panels_come_in_one_order(vase: Shell) -> None:
    panels = ["Options", "Model and recipe", "Eviction", BENCHMARK, "Sampling and limits", "Machine"]
    for command in ("run", "eval", "bench", "calibrate"):
        lines = vase(command, "--help").lines()
        found = [line.strip("╭╮─ ") for line in lines if line.startswith("╭") and "Arguments" not in line]
        assert found == [panel for panel in panels if panel != BENCHMARK or command == "bench"]


@pytest.mark.parametrize(
    ("arguments", "start", "end"),
    [
        (["evla"], "No such command 'evla'", "(see vase --help)"),
        (["tasks", "lsit"], "No such command 'lsit'", "(see vase tasks --help)"),
        (["--budget"], "No such option: --budget", "(see vase --help)"),
        (["eval", "--slot", "3"], "No such option: --slot ", "(see vase eval --help)"),
    ],
)
def test_usage_errors_are_one_line(vase: Shell, arguments: list[str], start: str, end: str) -> None:
    refusal = vase.refused(*arguments)
    assert refusal.startswith(start) and refusal.endswith(end)


def test_no_command_prints_the_help(vase: Shell) -> None:
    outcome = vase()
    assert "Usage: vase [OPTIONS] COMMAND" in outcome.out and "doctor" in outcome.out
    assert outcome.err == ""
    assert "\n".join(vase("--help").lines()).strip() == outcome.out.strip()
    assert vase("--version").out.startswith("vase ")


def test_a_reader_that_goes_away_is_no_error(vase: Shell, tmp_path: Path) -> None:
    script = "import time; from vase_cli.cli.app import main; time.sleep(0.2); main(['eval', '--schema'])"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path),
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (1, "")


@pytest.mark.parametrize(
    ("redirected", "code", "line"),
    [
        ("methods list >&-", 1, "vase: stdout is closed; "),
        ("methods list > /dev/full", 1, "vase: cannot write to stdout: No space left on device; "),
        ("methods list --json > /dev/full", 1, "vase: cannot write to stdout: No space left on device; "),
        ("--help > /dev/full", 1, "vase: cannot write to stdout: No space left on device; "),
        ("run <&-", 2, "vase: the prompt is empty: "),
        ("methods lsit 2>&-", 2, None),
        ("methods lsit 2>/dev/full", 2, None),
        ("methods list 2>&-", 0, None),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and /dev/full")
def test_a_stream_that_is_closed_or_full_ends_in_one_line(
    tmp_path: Path, redirected: str, code: int, line: str | None
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m vase_cli {redirected}"],
        capture_output=True,
        text=True,
        env=clean_environment(tmp_path),
    )
    assert done.returncode == code
    if line is None:
        assert done.stderr == ""
    else:
        (said,) = done.stderr.splitlines()
        assert said.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["run", "--model", "", "hi"], "an empty name stands for no file or folder; "),
        (["run", "--model", "~nosuchuser/x", "hi"], "~nosuchuser/x: there is no home folder of that user; "),
        (["run", "--recipe", "~nosuchuser/x.yaml", "hi"], "~nosuchuser/x.yaml: there is no home folder"),
        (["eval", "~nosuchuser/x.jsonl", "--grader", "math"], "~nosuchuser/x.jsonl: there is no home folder"),
        (
            ["eval", "gsm8k", "--model", "tiny-reasoner", "--data", "~nosuchuser/x"],
            "~nosuchuser/x: there is no home folder",
        ),
        (["run", "--model", "x" * 256, "hi"], f"cannot look at {'x' * 256}: File name too long"),
        (["run", "--recipe", f"{'x' * 256}.yaml", "hi"], f"cannot look at {'x' * 256}.yaml: File name too long"),
        (["run", "--input", f"{'x' * 256}.jsonl"], f"cannot look at {'x' * 256}.jsonl: File name too long"),
        (["zoo", "list", "--zoo", "x" * 256], f"cannot look at {'x' * 256}: File name too long"),
        (["eval", f"{'x' * 256}.jsonl"], f"cannot look at {'x' * 256}.jsonl: File name too long"),
        (
            ["eval", "gsm8k", "--model", "tiny-reasoner", "--data", "x" * 256],
            f"cannot look at {'x' * 256}: File name too long",
        ),
        (["grade", "x" * 256], f"cannot look at {'x' * 256}: File name too long"),
        (["zoo", "copy", "qwen3-8b", "x" * 256], f"cannot look at {'x' * 256}: File name too long"),
        (["run", "--model", "tiny-reasoner", "--system", "\udcff", "hi"], "--system: is not valid text (bad UTF-8"),
        (["run", "--model", "tiny-reasoner", "--method", "\udcff", "hi"], "--method: is not valid text"),
        (["run", "--model", "a\0b", "hi"], "'a\\x00b' is no name that a file can have; correct it"),
    ],
)
def test_a_path_that_the_system_refuses_ends_in_one_line(vase: Shell, arguments: list[str], start: str) -> None:
    assert vase.refused(*arguments).startswith(start)


def test_a_path_in_a_recipe_is_refused_as_one_on_the_command_line_is(vase: Shell, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: ~nosuchuser/model\n")
    assert vase.refused("run", "--recipe", str(recipe), "hi").startswith(
        f"{recipe}:1: model: ~nosuchuser/model: there is no home"
    )


def test_a_home_folder_is_found_where_the_shell_left_it(vase: Shell, tmp_path: Path) -> None:
    (tmp_path / "home" / "zoo").mkdir(parents=True)
    (tmp_path / "home" / "zoo" / "mine.yaml").write_text("hub_id: organization/mine\n")
    assert any(line.startswith("mine ") for line in vase("zoo", "list", "--zoo=~/zoo").lines())
    assert vase.refused("grade", "~/zoo").startswith("no run folder at ~/zoo")


@pytest.mark.parametrize("command", [["run", "hi"], ["eval"], ["calibrate"], ["bench", "--device", "cpu"]])
def test_an_output_folder_of_nobody_is_no_folder_here(vase: Shell, command: list[str]) -> None:
    assert vase.refused(*command, "--out=~nosuchuser/x").startswith("~nosuchuser/x: there is no home folder")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_neither_copied_nor_read_for_prompts(vase: Shell) -> None:
    os.mkfifo("pipe.yaml")
    os.mkfifo("pipe.txt")
    assert vase.refused("recipes", "copy", "pipe.yaml", "to").startswith("cannot read pipe.yaml: it is a pipe")
    assert vase.refused("run", "--input", "pipe.txt").startswith("cannot read pipe.txt: it is a pipe")


@pytest.mark.parametrize(
    ("module", "source", "command"),
    [
        ("typer", "raise KeyboardInterrupt", "methods list"),
        ("yaml", "raise KeyboardInterrupt", "recipes list"),
        (
            "yaml",
            "try:\n    raise KeyboardInterrupt\nexcept BaseException as error:\n    raise ImportError('x') from error",
            "recipes list",
        ),
    ],
)
def test_an_interrupt_during_an_import_is_one_line(tmp_path: Path, module: str, source: str, command: str) -> None:
    (tmp_path / f"{module}.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), str(Path(vase_cli.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "vase_cli", *command.split()],
        capture_output=True,
        text=True,
        env=clean_environment(tmp_path) | {"PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vase: interrupted\n")


def test_a_terminal_of_any_width_is_served(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "9" * 400)
    assert "Usage: vase" in vase("--help").out


def test_a_name_of_two_lines_is_refused_in_one(vase: Shell) -> None:
    outcome = vase("zoo", "validate", "a\nb")
    assert outcome.code == 2 and len(outcome.err.splitlines()) == 1


def test_a_model_that_a_recipe_names_in_vain_is_refused_by_its_line(vase: Shell) -> None:
    Path("mine.yaml").write_text("# mine\nmodel: nothing\n")
    assert vase.refused("run", "--recipe", "mine.yaml", "hi").startswith(
        "recipe mine (mine.yaml:2): model 'nothing' is no zoo entry"
    )


def test_a_message_is_one_line_of_a_length_to_read() -> None:
    message = str(ConfigError("what\u2028is\nwrong " + "x" * 10_000 + " and what to do"))
    assert len(message.splitlines()) == 1 and len(message) <= 2000
    assert message.startswith("what is wrong x") and message.endswith("x and what to do")


STEERING = "a\x1b]0;P\x07\x9b\u202eb"
SHOWN = "a␛]0;P␇\\u{9b}\\u{202e}b"


def test_an_error_line_and_a_note_cannot_steer_the_terminal(vase: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.dumps({"id": STEERING, "question": "q", "answer": "1"})
    Path("mine.jsonl").write_text(f"{row}\n{row}\n")
    refusal = vase.refused("eval", "mine.jsonl", "--grader", "math", "--model", "tiny-reasoner", "--method", "full")
    assert f"duplicate id '{SHOWN}'" in refusal
    print_notes([STEERING])
    assert capsys.readouterr().err == f"note: {SHOWN}\n"


def test_a_line_and_a_table_cannot_steer_a_terminal_and_a_pipe_gets_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table([STEERING], [[STEERING]], title=STEERING, notes=[STEERING])
    echo(STEERING)
    print_tables([table])
    assert capsys.readouterr().out.split() == [STEERING] * 5
    with terminal(monkeypatch, "stdout") as written:
        echo(STEERING)
        print_tables([table])
    assert written[0].count(SHOWN) == 5 and not set("\x07\x9b\u202e") & set(written[0])


def test_json_on_a_terminal_is_json_and_cannot_steer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, "stdout") as written:
        print_json({"text": STEERING})
    assert json.loads(written[0]) == {"text": STEERING} and not set("\x1b\x07\x9b\u202e") & set(written[0])
