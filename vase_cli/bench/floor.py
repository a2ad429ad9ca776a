"""The least time of a decode step: of the bytes that it must read, and of the operations that it must do."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vase_cli.bench.cells import Steps
from vase_cli.bench.rates import Rates
from vase_cli.engine.plan import RunPlan


class Floor(NamedTuple):
    """What a step must read and do, and the least time of either at the rates of the device."""

    weights_bytes: int
    kv_bytes: int
    bytes_ms: float
    ops_ms: float

    @property
    def ms(self) -> float:
        """No step is faster: it does both, at best one behind the other's back."""
        return max(self.bytes_ms, self.ops_ms)

    def figures(self, mean_ms: float) -> dict[str, Any]:
        """Make the part of a record, for steps that take ``mean_ms``."""
        return {
            "floor_bytes_ms": self.bytes_ms,
            "floor_ops_ms": self.ops_ms,
            "floor_ms": self.ms,
            "bound": "bytes" if self.bytes_ms >= self.ops_ms else "operations",
            "ratio": mean_ms / self.ms,
            "ratio_sum": mean_ms / (self.bytes_ms + self.ops_ms),
            "weights_step_bytes": self.weights_bytes,
            "kv_step_bytes": self.kv_bytes,
        }


def step_floor(plan: RunPlan, rates: Rates, rows: int, attended: float) -> Floor:
    """Work out the floor of a step of ``rows`` texts that attend to ``attended`` tokens, all rows together.

    Read are the weights, see :func:`weights_read`, and keys and values of the tokens attended to. Operations are those
    of products alone: 2 for each parameter that a row reads, of a mixture those of its own experts, and 4 for each
    token attended to in every query head, layer and dimension of a head. Norms, rotations and draws are left out.
    """
    shape, element_bytes = plan.facts.shape, plan.facts.torch_dtype.itemsize
    weights_bytes = weights_read(plan, rows)
    kv_bytes = round(attended * 2 * shape.layers * shape.kv_heads * shape.head_dim * element_bytes)
    flops = (
        2 * rows * weights_read(plan, 1) / element_bytes + 4 * shape.heads * shape.head_dim * shape.layers * attended
    )
    read_ms = 1000 * (weights_bytes + kv_bytes) / rates.bytes_per_s
    return Floor(weights_bytes, kv_bytes, read_ms, 1000 * flops / rates.flops_per_s)


def count_reads(cached_tokens: Sequence[int], budget: int | None, window: int, steps: Steps) -> tuple[float, int]:
    """Count tokens that a row attends to, the new one too, mean over rows and measured steps; and cuts in them.

    Rows hold ``cached_tokens`` before the warm-up; one that holds budget + window is cut, but none for None.
    """
    read, cuts = 0, 0
    for tokens in cached_tokens:
        for step in range(steps.warm_up + steps.measured):
            measured = step >= steps.warm_up
            tokens += 1
            read += tokens * measured
            if budget is not None and tokens == budget + window:
                tokens = budget
                cuts += measured
    return read / (len(cached_tokens) * steps.measured), cuts


def weights_read(plan: RunPlan, rows: int) -> int:
    """Count bytes of weights that a step reads: all but the embedding's rows and experts that no row is routed to.

    A tied embedding is read as the head. Of a mixture as many experts count as ``rows`` rows are expected to choose
    between them, if each chooses any with the same probability.
    """
    facts, architecture = plan.facts, plan.entry.architecture
    unread = architecture.unread_expert_parameters(facts.shape.layers, rows) if architecture is not None else 0.0
    return facts.weights_bytes - facts.embedding_bytes - round(unread * facts.torch_dtype.itemsize)
