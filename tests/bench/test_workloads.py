"""Workloads: what their files hold, what is refused, and what is drawn with a seed."""

from collections import Counter
from pathlib import Path

import pytest

from vase_cli.bench.workloads import Lengths, Workload, make_workload
from vase_cli.errors import DataError


def written(folder: Path, *lines: str) -> str:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_file_is_read_in_its_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"prompt_tokens": 7, "new_tokens": 30}',
        "",
        '{"count": 2, "new_tokens": 1, "prompt_tokens": 50}',
        '{"prompt_tokens": 3, "new_tokens": 4, "count": 1}',
    )
    workload = make_workload(path, seed=0)
    assert workload.name == path
    assert workload.lengths == (Lengths(7, 30), Lengths(50, 1), Lengths(50, 1), Lengths(3, 4))
    assert (workload.prompt_tokens, workload.new_tokens) == (110, 36)
    assert (workload.longest_prompt, workload.longest_text) == (50, 51)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "invalid JSON"),
        ("[7, 30]", "not an object with fields"),
        ('{"prompt_tokens": 7}', "no field 'new_tokens'"),
        ('{"new_tokens": 7}', "no field 'prompt_tokens'"),
        ('{"prompt_tokens": 0, "new_tokens": 30}', "field 'prompt_tokens' is 0, not a whole number, at least 1"),
        ('{"prompt_tokens": 7, "new_tokens": 2.5}', "field 'new_tokens' is 2.5, not a whole number"),
        ('{"prompt_tokens": "7", "new_tokens": 2}', "field 'prompt_tokens' is '7', not a whole number"),
        ('{"prompt_tokens": true, "new_tokens": 2}', "field 'prompt_tokens' is True, not a whole number"),
        ('{"prompt_tokens": 7, "new_tokens": 2, "count": -1}', "field 'count' is -1, not a whole number"),
        ('{"prompt_tokens": 7, "new_tokens": 3000000000}', "field 'new_tokens' is 3000000000, not a whole number"),
        (
            '{"prompt_tokens": 7, "new_tokens": 2, "samples": 3}',
            "field 'samples' is not known; there are: prompt_tokens",
        ),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line(tmp_path: Path, line: str, fault: str) -> None:
    path = written(tmp_path, '{"prompt_tokens": 7, "new_tokens": 30}', line, '{"prompt_tokens": 1, "new_tokens": 1}')
    with pytest.raises(DataError) as refusal:
        make_workload(path, seed=0)
    assert str(refusal.value).startswith(f"{path}:2: {fault}")
    assert "\n" not in str(refusal.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no request: write"):
        make_workload(written(tmp_path, ""), seed=0)
    with pytest.raises(DataError, match="no such file"):
        make_workload(str(tmp_path / "other.jsonl"), seed=0)
    with pytest.raises(DataError, match="--workload shrt: no such workload; give short, reasoning or a file that ends"):
        make_workload("shrt", seed=0)
    many = '{"prompt_tokens": 1, "new_tokens": 1, "count": 1000000}'
    with pytest.raises(DataError, match="2: more than 1,000,000 requests up to here"):
        make_workload(written(tmp_path, many, many), seed=0)


def test_short_draws_its_prompts_with_the_seed() -> None:
    short = make_workload("short", seed=3)
    assert short == make_workload("short", seed=3) != make_workload("short", seed=4)
    assert len(short.lengths) == 256 and {request.new_tokens for request in short.lengths} == {2048}
    prompts = [request.prompt_tokens for request in short.lengths]
    assert all(100 <= tokens <= 1000 for tokens in prompts) and len(set(prompts)) > 100
    assert min(prompts) < 150 and max(prompts) > 950 and 500 < sum(prompts) / 256 < 600


def test_reasoning_is_heavy_tailed_around_the_published_means() -> None:
    reasoning, other = make_workload("reasoning", seed=0), make_workload("reasoning", seed=1)
    assert reasoning == make_workload("reasoning", seed=0)
    assert reasoning.lengths != other.lengths and Counter(reasoning.lengths) == Counter(other.lengths)
    assert {request.prompt_tokens for request in reasoning.lengths} == {200}
    lengths = sorted(request.new_tokens for request in reasoning.lengths)
    assert len(lengths) == 64 and lengths[0] == 2048 and lengths[-1] == 32_768
    # Half of the texts are shorter than the lesser median, exp(-0.8^2 / 2) of a mean, or the greater one.
    assert 15_325 * 0.726 < lengths[32] < 17_847 * 0.727
    assert lengths[-7] == 32_768 > lengths[-8]
    assert sum(lengths) / 64 == pytest.approx(14_614, abs=1)


def test_tokens_are_drawn_with_the_seed_and_end_at_no_token_of_their_own() -> None:
    workload = Workload("mine", (Lengths(40, 5), Lengths(40, 6)))
    requests = workload.requests(vocabulary=11, seed=0)
    assert requests == workload.requests(vocabulary=11, seed=0) != workload.requests(vocabulary=11, seed=1)
    assert [len(request.prompt_token_ids) for request in requests] == [40, 40]
    assert {token for request in requests for token in request.prompt_token_ids} == set(range(11))
    assert requests[0].prompt_token_ids != requests[1].prompt_token_ids
    assert [(request.max_new_tokens, request.ignore_eos) for request in requests] == [(5, True), (6, True)]
    assert len({request.problem_id for request in requests}) == 2
