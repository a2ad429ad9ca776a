"""The least time of a decode step: the bytes that it must read over the bandwidth of a copy."""

from collections.abc import Sequence

import torch

from vase_cli.bench.cells import Steps
from vase_cli.engine.plan import RunPlan
from vase_cli.engine.timing import mark, milliseconds

_COPIES = 10
COPY_BYTES = {"cuda": 2 * 2**30, "cpu": 256 * 2**20, "mps": 256 * 2**20}


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
    """Count bytes of weights that a step reads: all but the embedding's rows and experts out of reach.

    A tied embedding is read as the head. Of a mixture all experts count that the rows could choose.
    """
    facts, architecture = plan.facts, plan.entry.architecture
    unread = architecture.unread_expert_parameters(facts.shape.layers, rows) if architecture is not None else 0
    return facts.weights_bytes - facts.embedding_bytes - unread * (facts.weights_bytes // facts.parameters)


def copy_bandwidth(device: torch.device) -> float:
    """Measure bytes a second, read and written, of a large copy in the device's memory; the best of several."""
    size = COPY_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times_ms = []
    for _ in range(_COPIES):
        start = mark(device)
        target.copy_(source)
        times_ms.append(milliseconds(start, mark(device)))
    return 2 * size * 1000.0 / min(times_ms)
