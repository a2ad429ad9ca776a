r"""Recurrences modulo a small number, generated; the problems that the embedded reasoner was trained to solve.

A thought has some 500 characters, one line for each term; a line needs the line before, the term two back, and the
numbers of the prompt, which no line says again.
"""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vase_cli.tasks.base import Problem, Task

_PROBLEMS = 512


@dataclass(frozen=True)
class Recurrence:
    """x_n = (x_{n-1} * factor + addend + x_{n-2}) mod modulus, with ``even_factor`` or ``odd_factor`` as x_{n-1} is."""

    first: int
    second: int
    even_factor: int
    odd_factor: int
    addend: int
    modulus: int
    terms: int

    @property
    def question(self) -> str:
        """The user message."""
        return (
            f"Start {self.first}, {self.second}. Next: last * {self.even_factor} (* {self.odd_factor} if odd)"
            f" + {self.addend} + the one before, mod {self.modulus}. Term {self.terms}?"
        )

    def steps(self) -> Iterator[tuple[int, int, int, int]]:
        """The product, the two sums and the term, for terms 3 and on."""
        before, last = self.first, self.second
        for _ in range(3, self.terms + 1):
            product = last * (self.odd_factor if last % 2 else self.even_factor)
            total = product + self.addend + before
            before, last = last, total % self.modulus
            yield product, product + self.addend, total, last

    @property
    def answer(self) -> str:
        """The last term."""
        return str([term for *_, term in self.steps()][-1])

    @property
    def solution(self) -> str:
        """The whole completion: a line for each term inside ``<think>``, then the answer in a box."""
        lines = (f"{number}: {' '.join(map(str, step))}\n" for number, step in enumerate(self.steps(), start=3))
        return f"<think>\n{''.join(lines)}</think>\n\n\\boxed{{{self.answer}}}"

    @property
    def held_out(self) -> bool:
        """True if it is for testing: 1 in 16, decided by all its numbers but ``terms``, so that no prefix leaks."""
        numbers = f"{self.first} {self.second} {self.even_factor} {self.odd_factor} {self.addend} {self.modulus}"
        return zlib.crc32(numbers.encode()) % 16 == 0


def draw(rng: random.Random, *, held_out: bool) -> Recurrence:
    """A random problem of one split whose terms never run into a cycle."""
    while True:
        modulus = rng.randint(40, 69)
        even_factor, odd_factor = rng.sample(range(2, 7), 2)
        first, second = rng.randrange(modulus), rng.randrange(modulus)
        problem = Recurrence(first, second, even_factor, odd_factor, rng.randint(1, 20), modulus, rng.randint(29, 35))
        if problem.held_out == held_out:
            pairs = list(pairwise([first, second, *(term for *_, term in problem.steps())]))
            if len(set(pairs)) == len(pairs):
                return problem


def held_out_problems() -> list[Recurrence]:
    """The test problems, always the same."""
    rng = random.Random(0)
    return [draw(rng, held_out=True) for _ in range(_PROBLEMS)]


TASK = Task(
    name="recurrence",
    title="Recurrences modulo a small number, generated",
    generate=lambda: [Problem(str(at), test.question, test.answer) for at, test in enumerate(held_out_problems())],
    count=_PROBLEMS,
    license="MIT",
    grader="integer",
    prompt_format="{question}",
    max_new_tokens=768,
    max_total_tokens=2_048,
    note="For the embedded model tiny-reasoner; none of these problems was in its training.",
)
