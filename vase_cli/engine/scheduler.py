"""Which request gets which row of the cache, and when (continuous batching)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from vase_cli.engine.requests import Request
from vase_cli.engine.sequence import Sequence


class Scheduler:
    """The longest first, those as long in the order given: a row that is free takes the next request at once.

    ``max_num_seqs`` are the rows of the cache; ``length`` says how long a request is, and ``fits`` whether a row is
    long enough for it; ``eviction_key`` is as in :class:`~vase_cli.engine.sequence.Sequence`.
    """

    def __init__(
        self,
        max_num_seqs: int,
        eviction_key: Callable[[Request], int],
        length: Callable[[Request], int],
        fits: Callable[[Request, int], bool],
    ) -> None:
        self.rows: list[Sequence | None] = [None] * max_num_seqs
        self._waiting: deque[Request] = deque()
        self._eviction_key = eviction_key
        self._length = length
        self._fits = fits

    @property
    def has_work(self) -> bool:
        """True while a request waits or a sequence has a row."""
        return bool(self._waiting) or any(self.rows)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests, among as long ones behind those that wait."""
        self._waiting = deque(sorted((*self._waiting, *requests), key=self._length, reverse=True))

    def schedule(self) -> Iterator[Sequence]:
        """Offer the next request to each row that fits while it is free; the caller starts the sequence or refuses it.

        Where starting it fails with an exception, the request goes on waiting.
        """
        for row in range(len(self.rows)):
            while self._waiting and self.rows[row] is None and self._fits(self._waiting[0], row):
                request = self._waiting[0]
                sequence = Sequence(request, row, self._eviction_key(request))
                yield sequence
                if sequence.status == "waiting":
                    self._waiting.popleft()

    def start(self, sequence: Sequence) -> None:
        """Give a sequence its row; its request waits no longer."""
        if self._waiting and self._waiting[0] is sequence.request:
            self._waiting.popleft()
        sequence.status = "running"
        self.rows[sequence.row] = sequence

    def running(self) -> list[Sequence]:
        """The sequences that have a row, in the order of the rows."""
        return [sequence for sequence in self.rows if sequence is not None]

    def finish(self, sequence: Sequence) -> None:
        """Free the row of a sequence."""
        sequence.status = "finished"
        self.rows[sequence.row] = None

    def restart(self, max_num_seqs: int) -> None:
        """Go on with other rows: what ran waits again, among requests as long first, in the order of its start."""
        unfinished = sorted(self.running(), key=lambda sequence: sequence.started_s)
        waiting, self._waiting = self._waiting, deque(sequence.request for sequence in unfinished)
        self.add(waiting)
        self.rows = [None] * max_num_seqs

    def clear(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
