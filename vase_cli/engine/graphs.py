"""CUDA graphs: work that was launched once, kernel by kernel, and is then launched as a whole."""

from collections.abc import Callable

import torch

from vase_cli.errors import first_line

_WARM_UPS = 2


class CaptureError(Exception):
    """Why some work could not be captured, in one line."""


def capture(compute: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """Run some work a few times, so that everything is compiled, and capture it.

    ``compute`` launches the work on the current stream; it must not wait for the device.
    CaptureError if the work cannot be captured, torch.OutOfMemoryError if there is no room for what it allocates.
    """
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            compute()
    before.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            compute()
    except RuntimeError as error:
        # A capture that fails ends with an error of its own, before it gives the stream back.
        torch.cuda.set_stream(before)
        cause = error.__context__ or error
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        torch.cuda.synchronize(device)
        raise CaptureError(first_line(cause)) from error
    return graph
