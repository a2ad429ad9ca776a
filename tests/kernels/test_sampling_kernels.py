"""The sampling kernels against their torch reference, on a GPU or in Triton's interpreter."""

import math

import pytest
import torch
from helpers.kernels import DEVICE, INTERPRETING, MARKS, triton_ops
from helpers.logits import LOGITS, exact

from vase_cli.config.schema import SamplingParams
from vase_cli.engine.sampling import sample
from vase_cli.kernels.ops import TorchOps
from vase_cli.randomness import gumbel, uniform

pytestmark = MARKS

# Where all logits are equal, no share of up to 64 candidates adds up to a top_p of these: rounding decides nothing.
FROM_FEW = [
    SamplingParams(),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.937),
    SamplingParams(temperature=1.3, top_k=1),
    SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.11),
    SamplingParams(temperature=5.0, top_k=33, top_p=0.713, min_p=0.017),
    SamplingParams(temperature=1.0, top_k=64, top_p=0.0137),
    SamplingParams(temperature=3.0, top_k=64),
]
# Their filters are so strict, or so loose, that the first token asked for is refused often, several times, or never.
FROM_MANY = [
    SamplingParams(temperature=0.6, top_p=0.937),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.0137),
    SamplingParams(temperature=4.0, top_p=0.99983),
    SamplingParams(temperature=0.7, min_p=0.11),
    SamplingParams(temperature=2.0, top_k=65),
    SamplingParams(temperature=5.0, top_k=1000, top_p=0.713, min_p=0.017),
    SamplingParams(temperature=2.0, top_k=200_000, top_p=0.613),
]
SETTINGS = FROM_FEW + FROM_MANY
TYPICAL = [FROM_FEW[0], FROM_FEW[1], FROM_MANY[0]]
SEARCHED = FROM_MANY[5]  # for the last of its candidates


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def names_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys all over the 64-bit integers, and positions."""
    keys = torch.arange(rows, device=DEVICE) * -0x61C8864680B583EB + (1 << 62)
    return keys, torch.arange(rows, device=DEVICE) * 977


def by_kernel(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    return sample(logits, params, *names_of(len(logits)), triton_ops())


def by_torch(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    return sample(logits, params, *names_of(len(logits)), TorchOps())


def assert_draws_as_torch(logits: torch.Tensor, params: SamplingParams) -> None:
    tokens, finite = by_kernel(logits, params)
    expected, _ = by_torch(logits, params)
    assert tokens.dtype == torch.int64 and finite.dtype == torch.bool
    assert finite.all() and torch.equal(tokens, expected)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_draws_are_those_of_torch(dtype: torch.dtype, params: SamplingParams):
    rows = 2 if INTERPRETING else 256
    assert_draws_as_torch((3 * draw(rows, 9001, seed=1)).to(dtype).to(DEVICE), params)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_equal_logits_fall_to_the_lower_id_in_every_block(params: SamplingParams):
    logits = draw(4, 9001, seed=2).round().clamp(max=2).to(DEVICE)
    logits[1] = 0.0
    logits[2, :4090] = logits[2, 4100:8190] = -5.0
    logits[3] = torch.where(torch.arange(9001, device=DEVICE) % 1000 == 999, 1.0, -1.0)
    assert_draws_as_torch(logits, params)


def test_draws_come_from_the_first_of_equal_logits():
    logits = torch.zeros(24, 5000, device=DEVICE)
    logits[:, 4095:4098] = 1.0
    tokens, _ = by_kernel(logits, SamplingParams(temperature=9.0, top_k=7))
    assert set(tokens.tolist()) <= {4095, 4096, 4097, 0, 1, 2, 3}
    assert len(set(tokens.tolist())) > 3


@pytest.mark.parametrize(("earlier", "later"), [(3, 4), (5, 40), (300, 3000), (10, 4999)])
def test_logits_that_the_temperature_makes_equal_fall_to_the_lower_id(earlier: int, later: int):
    low = torch.tensor(7.0)
    high = low.nextafter(torch.tensor(8.0))
    assert high > low and high / 3.4 == low / 3.4
    logits = torch.full((1, 5000), -1.0)
    logits[0, earlier], logits[0, later] = low, high
    for params, token in ((SamplingParams(), later), (SamplingParams(temperature=3.4, top_k=1), earlier)):
        assert by_kernel(logits.to(DEVICE), params)[0].tolist() == [token]


def test_the_two_zeros_are_one_logit():
    logits = torch.full((2, 600), -1.0, device=DEVICE)
    logits[0, 100], logits[0, 300] = -0.0, 0.0
    logits[1, 100], logits[1, 101] = -0.0, 0.0
    assert by_kernel(logits, SamplingParams())[0].tolist() == [100, 100]


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 16, 17, 64, 65, 90, 256, 257, 4096, 4097])
def test_any_vocabulary(vocabulary: int):
    logits = draw(3, vocabulary, seed=vocabulary).to(DEVICE)
    for params in (*TYPICAL, SEARCHED):
        assert_draws_as_torch(logits, params)


@pytest.mark.parametrize("params", FROM_MANY, ids=str)
def test_no_setting_is_left_to_torch(params: SamplingParams, monkeypatch: pytest.MonkeyPatch):
    logits = draw(2, 700, seed=10).to(DEVICE)
    expected = by_torch(logits, params)
    monkeypatch.delattr(TorchOps, "draw")
    assert all(torch.equal(part, other) for part, other in zip(by_kernel(logits, params), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("params", TYPICAL, ids=str)
@pytest.mark.parametrize("penalty", [0.77, 1.3])
def test_a_repetition_penalty_gives_the_draws_of_penalized_logits(
    penalty: float, params: SamplingParams, dtype: torch.dtype
):
    logits = (2 * draw(5, 4500, seed=12)).to(dtype).to(DEVICE)
    seen = draw(5, 4500, seed=13).to(DEVICE) < 0
    seen[0], seen[1] = False, True
    logits[3, 4444], seen[3, 4444] = torch.finfo(dtype).max, True
    logits[4, 4444], seen[4, 4444] = -torch.finfo(dtype).max, True
    params = SamplingParams(**{**vars(params), "repetition_penalty": penalty})
    tokens, finite = sample(logits, params, *names_of(5), triton_ops(), seen)
    expected, finite_by_torch = sample(logits, params, *names_of(5), TorchOps(), seen)
    assert torch.equal(finite, finite_by_torch) and finite[:3].all()
    assert torch.equal(tokens[finite], expected[finite])
    assert finite.tolist()[3:] == [penalty > 1, penalty < 1]


@pytest.mark.parametrize("slope", [0.0, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("filters", [{"top_p": 1e-6}, {"top_p": 1e-3}, {"top_p": 0.0713}, {"min_p": 0.917}], ids=str)
def test_a_draw_that_is_refused_again_and_again_ends_in_the_few_that_are_left(slope: float, filters: dict[str, float]):
    logits = (slope * torch.arange(9000, 0, -1).float()).expand(4, -1).to(DEVICE)
    assert_draws_as_torch(logits, SamplingParams(temperature=1.0, **filters))  # type: ignore[arg-type]


def test_a_temperature_that_leaves_no_finite_weight_still_draws_a_token():
    logits = 1e37 * draw(2, 5000, seed=11).to(DEVICE)
    for params in (SamplingParams(temperature=1e-6, top_p=0.9), SamplingParams(temperature=1e-6, top_k=70)):
        for signed in (logits, -logits.abs()):
            tokens, finite = by_kernel(signed, params)
            assert finite.all() and ((tokens >= 0) & (tokens < 5000)).all()


def test_any_strides():
    wide = draw(3, 5000, seed=4).bfloat16().to(DEVICE)
    tall = draw(700, 3, seed=5).to(DEVICE)
    for logits in (wide[:, 3:4505], wide[::2, 1:], wide[1:2].expand(3, -1), tall.T, tall[::2].T):
        for params in (FROM_FEW[1], FROM_MANY[0]):
            assert_draws_as_torch(logits, params)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("params", TYPICAL, ids=str)
def test_a_row_that_is_not_finite_is_named_and_disturbs_no_other(params: SamplingParams, dtype: torch.dtype):
    logits = draw(9, 5001, seed=6).to(dtype).to(DEVICE)
    clean, _ = by_kernel(logits, params)
    logits[1, 0] = torch.nan
    logits[2, 5000] = -torch.inf
    logits[4, 4096] = torch.inf
    logits[5] = torch.nan
    logits[6] = -torch.inf
    logits[7] = -torch.full_like(logits[7], torch.nan)
    logits[8, 17] = torch.finfo(dtype).max / 4
    tokens, finite = by_kernel(logits, params)
    assert finite.tolist() == [True, False, False, True, False, False, False, False, True]
    assert tokens[[0, 3, 8]].tolist() == [clean[0], clean[3], 17]
    assert not tokens[~finite].any()
    assert torch.equal(finite, by_torch(logits, params)[1])


def test_no_candidates_are_searched_in_a_row_that_is_not_finite():
    logits = draw(2, 3000, seed=14).to(DEVICE)
    logits[1] = torch.nan
    tokens, finite = by_kernel(logits, SEARCHED)
    assert finite.tolist() == [True, False] and tokens.tolist() == [by_torch(logits, SEARCHED)[0][0], 0]


def test_a_row_does_not_depend_on_the_others():
    rows = 4 if INTERPRETING else 256
    logits = draw(rows, 5000, seed=7).to(DEVICE)
    keys, positions = names_of(rows)
    for params in TYPICAL:
        together, _ = sample(logits, params, keys, positions, triton_ops())
        for row in range(0, rows, max(1, rows // 16)):
            one = slice(row, row + 1)
            alone, _ = sample(logits[one], params, keys[one], positions[one], triton_ops())
            assert torch.equal(alone, together[one])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=0.8, top_p=0.7),
        SamplingParams(temperature=1.5, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.3),
    ],
    ids=str,
)
def test_frequencies_are_the_exact_probabilities(params: SamplingParams):
    draws = 25 if INTERPRETING else 200_000
    logits = LOGITS.to(DEVICE).expand(draws, -1)
    keys = torch.full((1,), 5, device=DEVICE).expand(draws)
    tokens, _ = sample(logits, params, keys, torch.arange(draws, device=DEVICE), triton_ops())
    observed = torch.bincount(tokens, minlength=len(LOGITS)).cpu() / draws
    for share, probability in zip(observed.tolist(), exact(params), strict=True):
        assert abs(share - probability) < 5 * math.sqrt(max(probability * (1 - probability), 1e-12) / draws)


@pytest.mark.parametrize("vocabulary", [8, 20_000])
def test_rare_noise_is_exact(vocabulary: int):
    """A uniform number below the spacing of float32 at 1: its noise is large, finite and fine enough to decide."""
    key, position, rare = torch.tensor([7]), torch.tensor([18_860_078]), 4
    numbers = uniform(key[:, None], position[:, None], torch.arange(vocabulary))[0]
    assert numbers[rare] < 2.0**-25
    noise = gumbel(numbers)
    common = vocabulary - 8 if vocabulary > 8 else 0
    for margin, expected in ((0.01, common), (-0.01, rare)):
        logits = torch.full((1, vocabulary), -40.0)
        logits[0, rare], logits[0, common] = 0.0, noise[rare] - noise[common] + margin
        params = SamplingParams(temperature=1.0, top_k=7 if common == 0 else 0)
        tokens, _ = sample(logits.to(DEVICE), params, key.to(DEVICE), position.to(DEVICE), triton_ops())
        assert tokens.tolist() == [expected]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("params", TYPICAL, ids=str)
def test_a_captured_graph_draws_from_what_its_inputs_hold_then(params: SamplingParams):
    logits = [draw(16, 20_000, seed=seed).to(DEVICE) for seed in (8, 9)]
    keys, positions = names_of(16)
    ops = triton_ops()
    inputs = [(logits[0], params, keys, positions), (logits[1], params, keys + 1, positions + 5)]
    expected = [sample(*given, ops) for given in inputs]
    held = logits[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, finite = sample(held, params, keys, positions, ops)
    graph.replay()
    assert torch.equal(tokens, expected[0][0]) and finite.all()
    held.copy_(logits[1])
    keys += 1
    positions += 5
    graph.replay()
    assert torch.equal(tokens, expected[1][0])


def test_a_row_goes_on_alone_where_the_other_programs_left_it_no_successor():
    """Two kernels may come to either side of a top-p with the last bit of a sum."""
    from vase_cli.kernels import vocabulary_sampling as kernels

    rows, vocabulary = 6, 3000
    logits = draw(rows, vocabulary, seed=3).to(DEVICE)
    keys, positions = names_of(rows)
    size = (rows, 3)
    peaks, sums = torch.empty((2, *size), device=DEVICE)
    bests = torch.full((2, *size), -(2**63), dtype=torch.int64, device=DEVICE)
    masses = torch.full((2, *size), torch.inf, device=DEVICE)  # the first turn's token is refused
    row_logits, streams = (logits, vocabulary, None, 1.0, vocabulary, 1.0), (keys, 1, positions, 1)
    sizes = {"block": 1024, "padded_blocks": 4}
    kernels._sum_blocks[size](*row_logits, peaks, sums, 3, block=1024)
    kernels._draw_blocks[size](*row_logits, vocabulary, 26.0, -math.inf, *streams, peaks, sums, bests, 3, **sizes)

    def chosen(turns: int) -> list[int]:
        tokens, finite = torch.empty(rows, dtype=torch.int64, device=DEVICE), torch.empty(rows, dtype=torch.bool)
        tables = (peaks, sums, bests, masses, 3, turns, tokens, finite.to(DEVICE))
        kernels._choose[(rows,)](*row_logits, vocabulary, 0.9, 0.0, *streams, *tables, **sizes)
        return tokens.tolist()

    first = (-bests[0].amax(dim=1) & 0xFFFFFFFF).tolist()
    assert chosen(2) == chosen(1)
    assert all(logits[row, token] > logits[row, first[row]] for row, token in enumerate(chosen(2)))
