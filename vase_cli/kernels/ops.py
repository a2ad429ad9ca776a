"""What Triton kernels can do, in plain torch: their reference, and what serves where there is no Triton.

Shapes: R storage rows, S cached tokens of a row, N work items (one layer of one sequence), W window, C candidates of a
cut (the first tokens in text order), K = C - W of them kept, Hq query heads, H KV heads, G = Hq // H, D head dim;
B rows, V vocabulary.

States, ``keys`` and ``values``, are (R, S, H, D) of any float dtype, ``queries`` (R, W, Hq, D), ``positions``
(R, H, S) int32 text positions in text order. Scores are (N, H, C) float32 in text order, NaN where the states that
they read are not finite.
"""

import importlib.util
import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from vase_cli.kernels.ranking import best, best_mask
from vase_cli.randomness import SequenceNoise, gumbel, uniform

_SMALLEST_WEIGHT = 1e-37  # the log of a weight that underflowed to zero stays finite: drawn last, but drawn


class Place(NamedTuple):
    """Where the candidates of N items stand."""

    rows: Tensor  # (N,) int64, the storage row of each item
    slot_mapping: Tensor | None  # (R, H, S) int32, the slot of each token in text order; None if that is its index
    candidates: int  # C

    def states(self, stored: Tensor) -> Tensor:
        """Their keys or values in text order, (N, H, C, D) float32."""
        if self.slot_mapping is None:
            return stored[self.rows, : self.candidates].transpose(1, 2).float()
        slots = self.slot_mapping[..., : self.candidates][self.rows].long()
        heads = torch.arange(stored.shape[2], device=stored.device)
        return stored[self.rows[:, None, None], slots, heads[:, None]].float()


def nan_unless_finite(scores: Tensor) -> Tensor:
    """Replace infinities by NaN: an overflow is an error, not a protected token."""
    return torch.where(scores.isfinite(), scores, torch.nan)


def select_ops(device: torch.device) -> "TorchOps":
    """The operations of a device: Triton's kernels on a CUDA device where Triton is installed, else plain torch."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from vase_cli.kernels.triton_ops import TritonOps

        return TritonOps()
    return TorchOps()


class TorchOps:
    """The operations in plain torch, on any device; they keep no state."""

    has_kernels: ClassVar[bool] = False
    """Whether this is the form for devices that run Triton's kernels."""

    def scores_in_place(self, head_dim: int) -> bool:
        """Whether scores are read straight from the cache's memory, each item by itself.

        Then a cut may score many sequences at once, and the value ranges that it finds are worth keeping.
        """
        return False

    def window_attention(self, queries: Tensor, keys: Tensor, place: Place, lse: Tensor | None = None) -> Tensor:
        """Softmax over the candidates of q·k / sqrt(D), mean over the W queries of the G heads: sums to 1 over C.

        ``lse``, (R, W, Hq) float32, is log2 of the sum of exp(q·k / sqrt(D)) over the candidates for each query, where
        decode steps have left it; a kernel then leaves out a pass over the keys.
        """
        keys = place.states(keys)
        items, heads, _, head_dim = keys.shape
        queries = queries[place.rows].float().unflatten(2, (heads, -1))
        window, group = queries.shape[1], queries.shape[3]
        queries = queries.permute(0, 2, 3, 1, 4).reshape(items, heads, -1, head_dim) / math.sqrt(head_dim)
        weights = torch.softmax(queries @ keys.transpose(-1, -2), dim=-1)
        return weights.reshape(items, heads, group, window, place.candidates).mean(dim=3).mean(dim=2)

    def value_range(self, values: Tensor, place: Place, known: Tensor | None = None, newest: int = 0) -> Tensor:
        """Maximum minus minimum of each candidate's value state.

        ``known``, (R, H, S) float32 by storage slot, are ranges found before, negative where none was: a kernel takes
        them, but for the ``newest`` last candidates, and adds the others.
        """
        states = place.states(values)
        return nan_unless_finite(states.amax(dim=-1) - states.amin(dim=-1))

    def redundancy(self, keys: Tensor, place: Place) -> Tensor:
        """Softmax over the candidates of the mean cosine similarity to all candidates, its own counted as 0.

        The mean comes from the sum of the unit keys, so the C x C matrix is never formed.
        """
        unit = torch.nn.functional.normalize(place.states(keys), dim=-1)
        similarity = (unit @ unit.sum(dim=2, keepdim=True).transpose(-1, -2)).squeeze(-1) - unit.square().sum(dim=-1)
        return torch.softmax(similarity / place.candidates, dim=-1)

    def leverage(self, keys: Tensor, values: Tensor, place: Place, projection: Tensor) -> Tensor:
        """``|k P|² |v P|²`` of each candidate; ``projection`` is P, (N, D, r) float32."""
        key_norms = (place.states(keys) @ projection[:, None]).square().sum(dim=-1)
        value_norms = (place.states(values) @ projection[:, None]).square().sum(dim=-1)
        return nan_unless_finite(key_norms * value_norms)

    def sequence_uniforms(self, noise: SequenceNoise, seq_lens: Tensor | None, count: int) -> Tensor:
        """The first ``count`` uniform numbers of each item, (N, count) float32.

        ``seq_lens``, (N,) int64, gives each length of the text numbers of its own; with None an item keeps its numbers.
        """
        numbers = torch.arange(count, device=noise.keys.device)
        return noise.uniform(*(() if seq_lens is None else (seq_lens[:, None],)), numbers[None])

    def token_gumbel(
        self, noise: SequenceNoise, seq_lens: Tensor, positions: Tensor, rows: Tensor, candidates: int,
        weights: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """``noise.gumbel(seq_lens, head, position)`` of each candidate.

        ``seq_lens`` and ``rows`` are (N,) int64. ``weights``, (N, H, C) float32, not negative, add their logarithms;
        None adds nothing.
        """
        heads = torch.arange(positions.shape[1], device=positions.device)[:, None]
        drawn = noise.gumbel(seq_lens[:, None, None], heads, positions[..., :candidates][rows].long())
        return drawn if weights is None else weights.clamp_min(_SMALLEST_WEIGHT).log() + drawn

    def protect(self, scores: Tensor, mask: Tensor, checked: Tensor | None = None) -> Tensor:
        """``scores`` with ``inf`` where ``mask`` is set; NaN where they, or the other scores ``checked``, are NaN."""
        if checked is not None:
            scores = scores + 0.0 * checked
        return torch.where(mask & ~scores.isnan(), torch.inf, scores)

    def protect_sinks(self, scores: Tensor, positions: Tensor, rows: Tensor, sinks: int) -> Tensor:
        """``scores`` with ``inf`` where the text position is below ``sinks``; NaN stays."""
        return self.protect(scores, positions[..., : scores.shape[-1]][rows] < sinks)

    def largest(self, scores: Tensor, count: int) -> Tensor:
        """Which scores are the ``count`` largest of each head, in the order of ``best``: (N, H, C) bool."""
        return best_mask(scores, count)

    def evict(
        self, scores: Tensor, must_keep: Tensor | None, slot_mapping: Tensor, positions: Tensor, keys: Tensor,
        values: Tensor, rows: Tensor, seq_lens: Tensor,
    ) -> Tensor:  # fmt: skip
        """Cut full rows back to C tokens in each head, in place: the window and the K best of the candidates stay.

        Candidates that stay do not move. The window's tokens, which stand in the last W storage slots, move into those
        of the evicted.

        Args:
            scores: a NaN counts as some number.
            must_keep: (N, H, C) bool, what stays before all the rest; None for nothing.
            slot_mapping, positions, keys, values: the cache's own memory, contiguous, the first two (R, H, S) int32.
            rows: (N,) int64, which of R to cut, each once.
            seq_lens: (N,) int64, length of the text that each row holds tokens of.

        Returns (N,) bool, False for an item with a NaN score.
        """
        budget = scores.shape[-1]
        window = keys.shape[1] - budget
        kept = budget - window
        evicted = ~best_mask(scores, kept, must_keep=must_keep)
        order = evicted.byte().argsort(dim=-1, stable=True)  # what stays, then what goes, each in text order
        item_slots = slot_mapping[rows, :, :budget].gather(-1, order)
        slot_mapping[rows, :, :budget] = item_slots
        positions[rows, :, :kept] = positions[rows, :, :budget].gather(-1, order[..., :kept])
        coming = seq_lens[:, None] + torch.arange(-window, window, device=seq_lens.device)
        positions[rows, :, kept:] = coming[:, None].to(positions.dtype)
        holes = item_slots[..., kept:].long()
        heads = torch.arange(keys.shape[2], device=rows.device)[:, None]
        for states in (keys, values):
            states[rows[:, None, None], holes, heads] = states[rows, budget:].transpose(1, 2)
        return ~scores.isnan().flatten(1).any(dim=1)

    def draw(
        self, logits: Tensor, candidates: int, temperature: float, top_p: float, min_p: float, keys: Tensor,
        positions: Tensor, seen: Tensor | None = None, penalty: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draw a token of each row from its best candidates.

        A repetition penalty comes first, see :func:`penalized`; then the filters act in the order temperature, top-k,
        top-p, min-p, each on what the one before left, renormalized.
        The draw is Gumbel-max over what is left: the token of largest log-probability plus noise that is a function of
        (row key, text position, token id).

        Args:
            logits: (B, V) float32, float16 or bfloat16.
            candidates: how many of the best tokens to draw from, at most V.
            temperature, top_p, min_p: not negative, 0 is the greedy choice; in (0, 1]; in [0, 1].
            keys, positions: (B,) int64, stream key of each row, and text position of the token to draw.
            seen, penalty: (B, V) bool, contiguous, the tokens that the penalty is on; None for no penalty.

        Returns (B,) int64 token ids, and (B,) bool, whether a row's logits are all finite: where not, the token is in
        range and means nothing.
        """
        if seen is not None:
            logits = penalized(logits, seen, penalty)
        finite = logits.isfinite().all(dim=-1)
        safe = logits.masked_fill(~finite[:, None], 0.0)
        if temperature == 0.0:
            return safe.argmax(dim=-1), finite
        scaled = safe.float() / _divisor(temperature, logits.device)
        if _is_filtered(logits.shape[-1], candidates, top_p, min_p):
            token_ids, log_weights = _filtered(scaled, candidates, top_p, min_p)
        else:
            token_ids, log_weights = torch.arange(logits.shape[-1], device=logits.device).expand_as(scaled), scaled
        noise = gumbel(uniform(keys[:, None], positions[:, None], token_ids))
        return token_ids.gather(-1, (log_weights + noise).argmax(dim=-1, keepdim=True)).squeeze(-1), finite


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (B, V) in float32, those of ``seen`` tokens divided by the penalty if positive, else multiplied by it."""
    logits = logits.float()
    divisor = _divisor(penalty, logits.device)
    return torch.where(seen, torch.where(logits > 0, logits / divisor, logits * divisor), logits)


def _divisor(number: float, device: torch.device) -> Tensor:
    """A tensor on the device: torch would multiply by the reciprocal of a number there, and divide on the CPU."""
    return torch.full((), number, dtype=torch.float32, device=device)


def _is_filtered(vocabulary: int, candidates: int, top_p: float, min_p: float) -> bool:
    """Whether any filter may leave a token out."""
    return candidates < vocabulary or top_p < 1.0 or min_p > 0.0


def _filtered(scaled: Tensor, candidates: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """Token ids and log weights of the candidates, best first, ``-inf`` for what a filter removes."""
    token_ids = best(scaled, candidates)
    log_weights = scaled.gather(-1, token_ids)
    probabilities = torch.softmax(log_weights, dim=-1)
    dropped = probabilities < min_p * probabilities[:, :1]
    if top_p < 1.0:  # not where it is off: the mass before a rare token can round to 1
        # The mass before a token decides: the token that reaches top_p is kept, so at least one always is.
        dropped |= probabilities.cumsum(dim=-1) - probabilities >= top_p
    dropped[:, 0] = False
    return token_ids, log_weights.masked_fill(dropped, -torch.inf)
