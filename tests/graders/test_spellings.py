r"""Kinds of spellings: for each, answers that agree with a gold answer, and answers that look like it and do not."""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from helpers.graders_cases import box

from vase_cli import plugins
from vase_cli.graders.base import Grader


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    made = {name: plugins.load("graders", name)() for name in plugins.names("graders")}
    yield made
    for grader in made.values():
        grader.close()


# Each row: a grader, a gold answer, answers that are right, answers that are wrong.
Row = tuple[str, str, tuple[str, ...], tuple[str, ...]]
LARGE_AND_SMALL: list[Row] = [
    ("math", r"\frac{5^{40}-2}{5^{40}}", (r"1-\frac{2}{5^{40}}", r"1-2\cdot 5^{-40}"), (r"\frac{2}{5^{40}}", "1")),
    ("math", r"\frac{25!}{24!}", ("25", r"\frac{5^2\cdot 24!}{24!}"), ("24", r"\frac{26!}{25!}", r"\frac{24!}{25!}")),
    ("math", r"\frac{1}{7^{30}}", ("7^{-30}", r"\frac{7}{7^{31}}"), (r"\frac{1}{7^{29}}", "0", r"-\frac{1}{7^{30}}")),
    ("math", r"\frac{\pi}{2^{80}}", (r"\pi\cdot 2^{-80}",), (r"\frac{\pi}{2^{81}}", "0", r"\frac{3.14159}{2^{80}}")),
    ("math", r"\sqrt{10^{40}+1}", (r"\sqrt{1+10^{40}}",), (r"\sqrt{10^{40}+2}", "10^{20}")),
    ("math", r"\binom{80}{40}", (r"\frac{80!}{40!\cdot 40!}",), (r"\frac{80!}{40!\cdot 40!}+1",)),
    ("math", r"\frac{x}{2^{90}}", (r"x\cdot 2^{-90}",), (r"\frac{x}{2^{91}}", r"\frac{y}{2^{90}}")),
    ("math", r"\begin{pmatrix} 3^{-50} \\ 1 \end{pmatrix}", (), (r"\begin{pmatrix} 3^{-51} \\ 1 \end{pmatrix}",)),
    ("math", "x>2^{-90}", (), ("x>2^{-91}",)),
    ("math", "0", (r"\sqrt{2}\sqrt{3}-\sqrt{6}",), ("e^{-200}", "10^{-300}")),
]
KINDS: dict[str, list[Row]] = {
    "large and small": LARGE_AND_SMALL,
    "spacing at the end": [
        (
            "math",
            r"\frac{7}{3}",
            (r"\frac73\;", r"\frac73\ ", r"\frac73\,.", r"\frac73\quad", r"\frac73\!"),
            (r"\frac75\,",),
        ),
        ("integer", "45", (r"45\;", r"45\,,", r"45~"), (r"46\,",)),
        ("number", "4.5", (r"4.5\,", r"\$4.50\,", r"4.5\:"), (r"5.4\,",)),
        ("choice", "D", (r"D\,", r"(D)\;"), (r"C\,",)),
    ],
    "number words": [
        ("math", "3", (), (r"3\text{ thousand}", "3 billion", r"3\,\text{hundred}", r"\$3\text{ million dollars}")),
        (
            "math",
            "3500000",
            ("3.5 million", r"3.5\text{ million}", r"\$3.5\text{ million dollars}", r"\frac72\text{ million}"),
            ("3.5",),
        ),
        ("math", "5000000000", (r"5\,\mathrm{billion}", "5 Billion"), ("5 million",)),
        ("math", r"4\text{ million}", ("4000000", "4 million"), ("4", "4 billion")),
        (
            "number",
            "200000",
            ("2 hundred thousand", "about 200 thousand people", r"\$200\text{ thousand}"),
            ("200", "2"),
        ),
        ("number", "3", ("3 people",), ("3 trillion",)),
    ],
    "two numbers": [
        ("math", "345", (), ("3 45", r"34\quad 5", "3 4 5", r"34\ 5")),
        ("math", "3", (), ("1 2", "2 1")),
        ("math", "12345", ("12 345", r"12\,345"), ("12 34 5",)),
        ("math", "2500x", ("2 500x", r"2\,500x"), ("25 00x",)),
        ("math", r"\frac52", ("2 1/2", r"2\ \frac12"), ()),
        ("integer", "12", (), ("1 2", r"1\quad2")),
    ],
    "named values": [
        (
            "math",
            "(4,7)",
            ("x=4, y=7", "y=7, x=4", r"y=7\text{ and }x=4", "(y,x)=(7,4)"),
            ("x=7, y=4", "y=4, x=7", "(y,x)=(4,7)"),
        ),
        ("math", "(1,2,3)", ("z=3, x=1, y=2",), ("z=1, x=3, y=2",)),
        ("math", "x=4, y=7", ("(4,7)", "y=7, x=4"), ("(7,4)", "x=7, y=4")),
        ("math", "1,-2", ("x=1, x=-2",), ()),
    ],
    "primes": [
        ("math", "7", (), ("7'", "7''", r"7^{\prime}")),
        ("math", "y'", ("y^{\\prime}", "y^\\prime", "y′"), ("y", "y''", "x'")),
        ("math", "f'(x)+1", ("1+f'(x)",), ("f(x)+1",)),
        ("math", "2a'b", ("2ba'",), ("2ab'", "2ab")),
    ],
    "the root character": [
        ("math", r"\sqrt{35}", ("√35", "√(35)", "√{35}"), ("√3", "√53", "√3·5")),
        ("math", "0", (), ("√20", "√10", "5√10")),
        ("math", r"3\sqrt{x+1}", ("3√(x+1)", "3√(1+x)"), ("3√x+1",)),
        ("math", "2", ("√4", "∛8", "√2√2"), ("√8",)),
    ],
    "fractions without braces": [
        ("math", r"\frac{\pi}{3}", (r"\frac\pi3", r"\frac{\pi}3", r"\dfrac\pi 3"), (r"\frac3\pi",)),
        ("math", r"\frac{\sqrt{3}}{2}", (r"\frac{\sqrt3}2", r"\frac\sqrt32", r"\frac\sqrt{3}2"), (r"\frac\sqrt23",)),
        ("math", r"\frac{a}{b}", (r"\frac ab", r"\frac{a}b"), (r"\frac ba",)),
    ],
    "repeating decimals": [
        (
            "math",
            r"\frac{3}{11}",
            (r"0.\overline{27}", r"0.\dot2\dot7", "0.(27)", r".\overline{27}"),
            (r"0.2\overline{7}", "0.27"),
        ),
        ("math", r"-\frac{7}{6}", (r"-1.1\overline6", r"-1.1\bar{6}"), (r"1.1\overline6", r"-1.\overline{16}")),
        ("number", r"\frac23", (r"0.\overline{6}",), (r"0.\overline{7}",)),
    ],
    "joined conditions": [
        (
            "math",
            r"(-\infty,-1]\cup[4,\infty)",
            (r"x\le-1\text{ or }x\ge4", r"x\geq 4 or x\leq -1"),
            (r"x<-1\text{ or }x\ge4", r"x\le-1\text{ and }x\ge4"),
        ),
        (
            "math",
            "(0,5]",
            (r"x>0\text{ and }x\le5", r"\{x\mid 0<x\le5\}", r"\{x\in\mathbb{R}: 0<x\le 5\}"),
            (r"x\ge0\text{ and }x\le5", r"x>0\text{ or }x\le5"),
        ),
        ("math", "x<2, x>3", (r"x<2\text{ or }x>3", "x>3, x<2"), (r"x<2\text{ or }x>4",)),
    ],
    "rows of matrices": [
        (
            "math",
            r"\begin{pmatrix} 3 \\ 4 \end{pmatrix}",
            (r"\begin{pmatrix} 3 \\[4pt] 4 \end{pmatrix}", r"\begin{pmatrix} 3 \\[0.5em] 4 \end{pmatrix}"),
            (r"\begin{pmatrix} 4 \\[4pt] 3 \end{pmatrix}",),
        ),
    ],
    "units in upright letters": [
        (
            "math",
            "7",
            (
                r"7\,\mathrm{s}",
                r"7\ \mathrm{N\cdot m}",
                r"7\,\mathrm{m/s^2}",
                r"7\,\mathrm{kg}\cdot\mathrm{m}^{-3}",
                r"7\,\mathrm{~g}",
            ),
            (r"8\,\mathrm{s}", r"7\mathrm{i}", r"7\mathrm{e}"),
        ),
        ("math", "3m", (r"3\mathrm{m}",), ("3n",)),
    ],
    "braces around the whole": [
        ("math", "3,8", ("{8,3}", "{{3,8}}"), ("{3,9}",)),
        ("math", "[0,1)", ("{[0,1)}",), ("{[0,1]}",)),
        ("math", r"\frac{1}{2}x", (r"{\frac{1}{2}x}", "{x}/{2}"), ("{x}{2}",)),
    ],
    "looks": [
        (
            "math",
            "11",
            (
                r"\Large 11",
                r"{\bf 11}",
                r"\color{blue}{11}",
                r"\color{blue}11",
                r"\textcolor{blue}{11}",
                r"\underline{11}",
                r"{\color{blue} 11}",
            ),
            (r"\Large 12", r"\color{blue}{12}"),
        ),
        ("integer", "11", (r"\huge{11}", r"\bf 11"), (r"\huge{12}",)),
        ("choice", "A", (r"\Large\textbf{A}", r"\color{red}{A}"), (r"\bf C",)),
    ],
    "second spellings": [
        (
            "math",
            r"\frac{7}{4}",
            (r"\frac74\;(=1.75)", r"\frac74\ (\text{or } 1.75)", r"\frac74\text{ (or }1.75)", "1.75 (= 7/4)"),
            (r"\frac74\;(=1.5)", r"\frac34\;(=1.75)", r"\frac74\ (\text{or } 2)"),
        ),
        ("math", r"\sqrt{3}", (r"\sqrt3\;(\approx 1.73)", r"\sqrt3\approx1.73"), (r"\sqrt5\;(\approx 2.24)",)),
        ("number", "2.5", (r"\frac52\;(=2.5)",), (r"\frac52\;(=2.6)",)),
        ("choice", "B", (), ("B (or C)", "C (or B)")),
    ],
    "functions without a backslash": [
        ("math", r"\frac{3\pi}{4}", ("3*pi/4", "3pi/4", "(3/4)*pi"), ("3*pi/5", "3p*i/4")),
        ("math", r"2\sqrt{5}", ("2*sqrt(5)", "sqrt(20)"), ("2*sqrt(6)",)),
        ("math", r"\cos(2x)", ("cos(2x)", "cos(2*x)"), ("sin(2x)",)),
        ("math", r"\ln(5)", ("ln(5)",), ("ln(6)",)),
    ],
    "residues": [
        (
            "math",
            "4",
            (r"4\pmod{9}", r"x\equiv 4\pmod 9", r"4\text{ (mod 9)}", r"4\ (\bmod 9)", r"\approx 4"),
            (r"5\pmod 9", r"x\equiv5\pmod9"),
        ),
        ("math", r"x\equiv4\pmod 9", ("4", r"4\pmod 9"), (r"4\pmod 7", "5")),
        ("integer", "204", (r"204\pmod{1000}", r"N\equiv204\pmod{1000}"), (r"205\pmod{1000}",)),
    ],
    "the letter E": [
        ("math", r"\frac{E_2}{3}", ("E_2/3",), ("E_3/3", "e_2/3")),
        ("math", "3E+2", ("2+3E",), ("2+3e", "3E+1")),
        ("math", "e_1+1", ("1+e_1",), ("1+e_2", "1+e")),
        ("math", "300", ("3E+2", r"3\times10^2"), ("3E",)),
    ],
    "bases": [
        (
            "math",
            "143_5",
            ("(143)_5", r"143\text{ (base 5)}", r"143_{\text{five}}", "143 base 5", r"143\text{ in base }5"),
            ("(143)_6", r"143\text{ (base 6)}", "(142)_5"),
        ),
    ],
    "characters": [
        ("math", r"45^\circ", ("45º", "45°"), ("54º",)),
        ("math", "x^{12}", ("x¹²",), ("x¹³", "x12")),
        ("math", "2^{-3}", ("2⁻³",), ("2³",)),
        ("math", r"\frac23", ("⅔",), ("⅓",)),
        ("math", "a_{10}", ("a₁₀",), ("a₁", "a₁₁")),
        ("math", "-7", ("﹣7", "－7"), ("7",)),
    ],
    "text with a number": [
        ("math", r"\text{May 5}", ("May 5", "may 5", r"\text{May }5"), ("May 6", "June 5", "5")),
        ("math", "9:15", ("9:15 p.m.", r"9:15\text{ PM}"), ("9:16 p.m.", "9:51")),
        ("math", r"9:15\text{ a.m.}", ("9:15", "9:15 AM"), ("9:15 p.m.",)),
        (
            "math",
            "40",
            (r"\text{40 km}", r"\text{\$40}", r"\text{40 square feet}", r"\text{40 oranges}"),
            (r"\text{41 km}", r"\text{40 or 50}"),
        ),
    ],
    "letters of choices": [
        (
            "choice",
            "C",
            (r"\text{C (3 m/s)}", "C (the third)", r"\textbf{C}: 5"),
            (r"\text{C and D}", r"\text{C and D are right}", "C, D are right", "A and C are right"),
        ),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(graders: dict[str, Grader], kind: str) -> None:
    for grader, gold, right, wrong in KINDS[kind]:
        for answer in right:
            grade = graders[grader].grade(gold, box(answer))
            assert grade.status == "correct", f"{grader}: {gold} is {answer}: {grade}"
        for answer in wrong:
            grade = graders[grader].grade(gold, box(answer))
            assert grade.status == "wrong", f"{grader}: {gold} is not {answer}: {grade}"


BOTH = ("final_answer_phrase", "last_number")
FALLBACKS = [
    ("number", "36", "The answer is 36, so they need that many.", "36", BOTH),
    ("number", "250", "Final answer:\n\n$$\n\\text{ANSWER: } \\$250\n$$", "\\$250", BOTH),
    ("math", "x=1, y=2", "The answer is $x=1, y=2$.", "x=1, y=2", BOTH),
    ("math", "12", "**Final answer**\n\n**12**\n", "12", BOTH[:1]),
    ("choice", "D", "So the correct choice is (D).", "(D)", BOTH[:1]),
    ("choice", "D", "The best option: D, because it is heavier.", "D", BOTH[:1]),
]


@pytest.mark.parametrize(("grader", "gold", "text", "extracted", "fallbacks"), FALLBACKS)
def test_the_phrase_ends_before_a_remark(
    graders: dict[str, Grader], grader: str, gold: str, text: str, extracted: str, fallbacks: tuple[str, ...]
) -> None:
    grade = graders[grader].grade(gold, text, fallbacks=fallbacks)
    assert (grade.status, grade.extracted) == ("correct", extracted)


@pytest.mark.parametrize(
    ("grader", "gold", "text", "status", "rule"),
    [
        ("number", "5", "The answer is unknown to me.\nI take 5", "correct", "last_number"),
        ("integer", "5", "The answer is as follows:\nm + n = 5", "correct", "last_number"),
        ("choice", "B", "The answer is not clear.\nI take B", "correct", "last_choice_letter"),
        ("number", "5", "I see 5. The answer is 3 or 5.", "wrong", "final_answer_phrase"),
        ("choice", "B", "The answer is A or B.", "wrong", "final_answer_phrase"),
        ("math", "7", "So 7. The answer is blue.", "wrong", "final_answer_phrase"),
        ("number", "5", "The answer is unknown.", "wrong", "final_answer_phrase"),
    ],
)
def test_a_phrase_without_an_answer_leaves_it_to_the_next_fallback(
    graders: dict[str, Grader], grader: str, gold: str, text: str, status: str, rule: str
) -> None:
    grade = graders[grader].grade(gold, text, fallbacks=graders[grader].fallbacks_known)
    assert (grade.status, grade.rule) == (status, rule)


def test_rational_values_too_large_to_write_down_are_not_decided(graders: dict[str, Grader]) -> None:
    grade = graders["math"].grade("2^{10^9}", box("2^{10^9}+1"))
    assert (grade.status, grade.detail) == ("error", "OverflowError: the numbers are too large to be compared exactly")


def _spellings(value: Fraction, draw: random.Random) -> list[str]:
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    factor, power, step = draw.randint(2, 9), draw.randint(30, 90), draw.randint(20, 30)
    return [
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        rf"{sign}\frac{{{top * factor}}}{{{bottom * factor}}}\,",
        rf"\frac{{{sign}{top}\cdot {factor}^{{{power}}}}}{{{bottom}\cdot {factor}^{{{power}}}}}",
        rf"{sign}\frac{{{top}\cdot {step}!}}{{{bottom}\cdot {step}!}}",
        rf"\frac{{{sign}{top}-{bottom}\cdot 3^{{{power}}}}}{{{bottom}}}+3^{{{power}}}",
    ]


def test_equal_spellings_are_right_and_unequal_values_never_are(graders: dict[str, Grader]) -> None:
    draw = random.Random(7)
    for _ in range(40):
        value = Fraction(draw.randint(-60, 60) or 1, draw.randint(1, 40))
        other = value + draw.choice([Fraction(1), Fraction(1, 2**70), Fraction(-1, draw.randint(2, 99)), -2 * value])
        gold = draw.choice(_spellings(value, draw))
        for answer in _spellings(value, draw):
            assert graders["math"].grade(gold, box(answer)).status == "correct", (gold, answer)
        for answer in _spellings(other, draw):
            assert graders["math"].grade(gold, box(answer)).status == "wrong", (gold, answer)
