"""The embedded reasoner: its task, its tokenizer, its training data, and the weights that are shipped."""

import importlib
import itertools
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoTokenizer

from vase_cli import LLM, plugins
from vase_cli.config.catalog import Catalog, built_in_folder
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelShape
from vase_cli.evaluation.repetition import has_repetition
from vase_cli.models.tokenizer import load_tokenizer
from vase_cli.tasks.recurrence import TASK, Recurrence, draw, held_out_problems

FOLDER = built_in_folder("zoo") / "tiny-reasoner"
ENTRY = load_entry(FOLDER / "entry.yaml", "tiny-reasoner")
LONGEST = Recurrence(
    first=69, second=69, even_factor=6, odd_factor=5, addend=20, modulus=69, terms=35
)  # more characters than any that is drawn


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules ``train`` and ``measure`` of the model's folder, which is no package."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder goes into the wheel as it is
    return importlib.import_module("train"), importlib.import_module("measure")


def solved(prompt: str) -> int:
    """A problem solved from its text alone."""
    numbers = re.fullmatch(
        r"Start (\d+), (\d+)\. Next: last \* (\d+) \(\* (\d+) if odd\) \+ (\d+) \+ the one before, mod (\d+)\. "
        r"Term (\d+)\?",
        prompt,
    )
    assert numbers
    first, second, even, odd, addend, modulus, terms = map(int, numbers.groups())
    values = [first, second]
    while len(values) < terms:
        last, before = values[-1], values[-2]
        values.append((last * (even if last % 2 == 0 else odd) + addend + before) % modulus)
    return values[-1]


# --- the task -----------------------------------------------------------------------------------------------


def test_a_problem_by_hand() -> None:
    problem = Recurrence(first=3, second=5, even_factor=2, odd_factor=3, addend=1, modulus=40, terms=5)
    assert problem.question == "Start 3, 5. Next: last * 2 (* 3 if odd) + 1 + the one before, mod 40. Term 5?"
    assert problem.solution == "<think>\n3: 15 16 19 19\n4: 57 58 63 23\n5: 69 70 89 9\n</think>\n\n\\boxed{9}"
    assert problem.answer == "9"


def test_answers_follow_from_the_prompts() -> None:
    for problem in TASK.problems().problems:
        assert problem.answer == str(solved(problem.prompt))


def test_the_problems_do_not_move_between_versions() -> None:
    # Stored runs rely on it: a change here is a new task version.
    first, *_, last = TASK.problems().problems
    assert first.prompt == "Start 5, 5. Next: last * 3 (* 5 if odd) + 11 + the one before, mod 47. Term 33?"
    assert (first.id, first.answer, last.id, last.answer) == ("0", "43", "511", "36")


def test_training_and_test_problems_are_disjoint() -> None:
    rng = random.Random(7)
    trained_on = [draw(rng, held_out=False) for _ in range(3_000)]
    assert not any(problem.held_out for problem in trained_on)
    assert all(problem.held_out for problem in held_out_problems())
    # Both splits cover the same range, and about one problem in 16 is held out.
    drawn = [Recurrence(a, b, 2, 3, c, 50, 30) for a in range(50) for b in range(50) for c in (1, 7)]
    assert 0.05 < sum(problem.held_out for problem in drawn) / len(drawn) < 0.075


def test_the_split_ignores_the_number_of_terms() -> None:
    # Else a shorter problem of one split would be the beginning of a longer one of the other.
    for problem in held_out_problems()[:50]:
        for terms in range(29, 36):
            changed = Recurrence(**{**vars(problem), "terms": terms})
            assert changed.held_out


def test_terms_never_run_into_a_cycle() -> None:
    for problem in held_out_problems():
        values = [problem.first, problem.second, *(term for *_, term in problem.steps())]
        pairs = list(itertools.pairwise(values))
        assert len(set(pairs)) == len(pairs)
        assert not has_repetition(problem.solution)


def test_solutions_are_long_and_graded_right() -> None:
    problems = held_out_problems()
    thoughts = [problem.solution.partition("</think>")[0] for problem in problems]
    assert 450 <= sum(map(len, thoughts)) / len(thoughts) <= 600
    with plugins.load("graders", TASK.grader)() as grader:
        assert all(grader.grade(problem.answer, problem.solution).status == "correct" for problem in problems)
    assert TASK.max_new_tokens is not None
    assert len(LONGEST.solution) < TASK.max_new_tokens


def test_no_line_says_the_numbers_of_the_prompt_again() -> None:
    line = Recurrence(first=11, second=13, even_factor=4, odd_factor=6, addend=17, modulus=59, terms=3).solution
    assert line.splitlines()[1] == "3: 78 95 106 47"


# --- the tokenizer and the chat template --------------------------------------------------------------------


def test_tokenizer_is_one_token_a_character() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = LONGEST.question + LONGEST.solution
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.replace("<think>", "#").replace("</think>", "#"))
    assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    assert tokenizer.unk_token_id not in ids
    everything = "".join(map(chr, range(32, 127))) + "\n"
    assert tokenizer.decode(tokenizer(everything)["input_ids"]) == everything
    assert tokenizer("né")["input_ids"][1] == tokenizer.unk_token_id


def test_chat_template() -> None:
    tokenizer = load_tokenizer(ENTRY)
    prompt = tokenizer.encode_chat("Term 3?", system=None, think=True)
    assert not prompt.thought_open
    assert prompt == tokenizer.encode_chat("Term 3?", system=None, think=False)
    assert prompt == tokenizer.encode_text("<|user|>Term 3?<|assistant|>")
    assert len(prompt.token_ids) == 9
    assert tokenizer.decode(prompt.token_ids) == "Term 3?"
    end = tokenizer.encode_text("<|end|>").token_ids
    assert end == (tokenizer.eos_token_id,)


def test_chat_template_leaves_out_earlier_thoughts() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\n1\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>S<|user|>a<|assistant|>b<|end|><|user|>c<|assistant|>"


def test_a_copy_of_the_folder_says_that_it_always_thinks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text((FOLDER / "chat_template.jinja").read_text())
    assert Catalog.open().find_model(str(tmp_path)).thinking == ENTRY.thinking


# --- training -----------------------------------------------------------------------------------------------


def test_training_writes_the_tokenizer_that_is_shipped(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    train, _ = scripts
    train.write_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()


def test_training_rows(scripts: tuple[ModuleType, ModuleType]) -> None:
    train, _ = scripts
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    rows = train.Rows(tokenizer, seed=0, steps=10, rows=3)
    tokens, targets = rows[4]
    assert tokens.shape == targets.shape == (3, train.ROW_TOKENS)
    assert (rows[4] == rows[4]).all()
    assert (rows[5] != rows[4]).any() and (train.Rows(tokenizer, seed=1, steps=10, rows=3)[4] != rows[4]).any()
    for row_tokens, row_targets in zip(tokens, targets, strict=True):
        predicted = row_targets >= 0
        question, _, _ = tokenizer.decode(row_tokens[row_tokens != tokenizer.pad_token_id]).partition("<|assistant|>")
        text = tokenizer.decode(row_targets[predicted])
        # Only the completion is learnt, with the end token; each target is the token after.
        assert text.startswith("<think>\n3: ") and text.endswith("}<|end|>")
        assert text.rpartition("\\boxed")[2] == f"{{{solved(question.removeprefix('<|user|>'))}}}<|end|>"
        assert (row_tokens[1:][predicted[:-1]] == row_targets[predicted]).all()


def test_every_problem_fits_a_training_row(scripts: tuple[ModuleType, ModuleType]) -> None:
    train, measure = scripts
    tokenizer = load_tokenizer(ENTRY)
    prompt = tokenizer.encode_chat(LONGEST.question, system=None, think=True).token_ids
    assert len(prompt) + len(tokenizer.encode_text(LONGEST.solution).token_ids) + 1 <= train.ROW_TOKENS
    assert 500 < measure.mean_length(LLM(FOLDER, method="full")) < train.ROW_TOKENS


def test_learning_rate(scripts: tuple[ModuleType, ModuleType]) -> None:
    train, _ = scripts
    rates = [train.learning_rate(step, 1_000) for step in range(1_000)]
    assert rates[0] == 0.01 and max(rates) == rates[99] == 1.0
    assert rates[100:] == sorted(rates[100:], reverse=True) and rates[-1] < 1e-5


def test_shape_is_the_entrys_and_small(scripts: tuple[ModuleType, ModuleType]) -> None:
    import torch
    from transformers import Qwen3ForCausalLM

    train, _ = scripts
    config = train.make_config(AutoTokenizer.from_pretrained(FOLDER))
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    model.tie_weights()
    assert model.num_parameters() == ENTRY.parameters
    assert 2 * model.num_parameters() <= 8_000_000
    heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    assert ModelShape(config.num_hidden_layers, *heads) == ENTRY.shape
    assert config.max_position_embeddings == ENTRY.configured_tokens


def test_table_of_measurements(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, measure = scripts
    row = {"method": "rkv", "ratio": "4x", "budget": 160, "accuracy": 0.5, "stderr": 0.0221}
    full = {"method": "full", "ratio": "", "budget": None, "accuracy": 1.0, "stderr": 0.0}
    other = {**row, "ratio": "1.5x", "budget": 416, "accuracy": 0.975}
    assert measure.table([full, row, other]).splitlines() == [
        "| method | 1.5x (416 tokens) | 4x (160 tokens) |",
        "|---|---|---|",
        "| full | 100.0 ± 0.0 | 100.0 ± 0.0 |",
        "| rkv | 97.5 ± 2.2 | 50.0 ± 2.2 |",
    ]


# --- the weights that are shipped ---------------------------------------------------------------------------


def test_shipped_folder_is_small_and_whole() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    assert (FOLDER / "config.json").is_file() and (FOLDER / "generation_config.json").is_file()


def test_shipped_model_solves_every_problem_with_the_full_cache() -> None:
    """The likeliest token after every beginning of a solution is its next one, so greedy decoding writes just that."""
    import torch
    from transformers import AutoModelForCausalLM

    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32), load_tokenizer(ENTRY)
    prompts, texts = [], []
    for problem in held_out_problems()[:32]:
        prompt = tokenizer.encode_chat(problem.question, system=None, think=True).token_ids
        prompts.append(len(prompt))
        texts.append(
            torch.tensor([*prompt, *tokenizer.encode_text(problem.solution).token_ids, tokenizer.eos_token_id])
        )
    tokens = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.no_grad():
        likeliest = torch.cat([model(rows).logits.argmax(dim=-1) for rows in tokens.split(8)])
    for text, start, row in zip(texts, prompts, likeliest, strict=True):
        assert torch.equal(row[start - 1 : len(text) - 1], text[start:])
        assert len(text) - start >= 400


def test_shipped_model_under_eviction(scripts: tuple[ModuleType, ModuleType]) -> None:
    # Half the cache, of 512 problems: value-aware sampling solved all, the newest tokens alone 1 percent.
    _, measure = scripts
    kept, lost = (
        measure.run(measure.Job(method, {}, "2x", 320), folder=FOLDER, problems=8, device="cpu")
        for method in ("vase-attnv", "streaming")
    )
    assert kept["accuracy"] >= 0.8 and lost["accuracy"] <= 0.3
    assert (kept["loops"], kept["unfinished"], kept["errors"], lost["errors"]) == (0, 0, 0, 0)
    assert kept["mean_completion_tokens"] >= 400 and kept["cuts"] > 0
