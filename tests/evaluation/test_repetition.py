"""Texts as models write them, with a word on why each is or is not a loop or garbage."""

import random
import time

import pytest

from vase_cli.evaluation.repetition import has_garbage_tail, has_repetition

SOLUTION = (
    "Janet sells 16 - 3 - 4 = 9 duck eggs a day. She makes 9 * 2 = $18 every day at the farmer's market. "
    "So the answer is \\boxed{18}."
)
LATEX_TABLE = (
    "\\begin{array}{|c|c|c|}\n\\hline\nn & n^2 & n^3 \\\\\n\\hline\n"
    + "".join(f"{n} & {n**2} & {n**3} \\\\\n\\hline\n" for n in range(1, 20))
    + "\\end{array}"
)
MARKDOWN_TABLE = "| Day | Apples | Total |\n|-----|--------|-------|\n" + "".join(
    f"| Day {n} | {3 * n} apples | {3 * n * (n + 1) // 2} apples |\n" for n in range(1, 15)
)
CODE = "\n".join(
    f"def area_{shape}(self, width: float, height: float) -> float:\n    return width * height * {factor}\n"
    for shape, factor in zip(("square", "circle", "triangle", "kite", "ellipse", "rhombus"), range(2, 8), strict=True)
)
CASES = "".join(f"If n = {n}, then n^2 + 1 = {n * n + 1}, which is not divisible by 3.\n" for n in range(4, 14))

LOOPS = {
    "a thought goes round": "So x = 4. " + "Wait, let me check again. " * 20,
    "exactly five times is enough": SOLUTION + " " + "Hold on, is it? " * 5 + "!",
    "a phrase of ten characters": SOLUTION + "0123456789" * 5,
    "one short word": "the " * 200,
    "one short word, a few lines of it": SOLUTION + "the " * 30 + SOLUTION,
    "two alternating sentences": "No, that is wrong. Yes, that is right. " * 12,
    "a paragraph of 95 characters": (
        "Let me recompute the sum of the first terms again, because the result does not fit the claim.\n" * 6
    ),
    "in Chinese": "等等，让我再检查一遍这个结果。" * 20,
    "a looping fraction": "0." + "142857" * 40,
    "digits until the limit": "2^1000 = 1" + "0" * 800,
    "a ruler until the limit": "Result:\n" + "-" * 700,
    "newlines until the limit": SOLUTION + "\n" * 600,
    "empty rows until the limit": "| | |\n" * 150,
    "emoji until the limit": "🙂" * 600,
    "LaTeX goes round": "$\\frac{a}{b} = \\frac{c}{d}$ and so " * 15,
    "a tag goes round": "</think>\n\n**Final Answer**\n\\boxed{4}\n" * 8,
    "a loop, then a way out": "But is it prime? " * 15 + "Anyway, the answer is \\boxed{7}.",
    "cut within the phrase": ("Wait, let me check again. " * 30)[:-7],
}

NO_LOOPS = {
    "nothing": "",
    "a correct solution": SOLUTION,
    "four times only": SOLUTION + " Hold on, is it?" * 4,
    "a phrase of nine characters": "Start. " + "0123 5678" * 4 + "0123 567",
    "a loop that ended long ago": "Wait, let me check again. " * 20 + " ".join(map(str, range(200))),
    "a numbered list": "".join(f"{n}. Add {n} and {n + 1} to get {2 * n + 1}.\n" for n in range(1, 30)),
    "a LaTeX table": LATEX_TABLE,
    "a markdown table": MARKDOWN_TABLE,
    "its ruler, five columns": SOLUTION + "\n" + "|------------" * 8 + "|\n",
    "dashed lines": "".join(f"{'-' * 60}\nStep {n}\n" for n in range(1, 7)),
    "a long ruler": SOLUTION + "\n" + "=" * 120 + "\n",
    "runs of spaces": "Quantity" + " " * 150 + "Price",
    "dots to the page": "Contents" + " ." * 60 + " 7",
    "rows of zeros": "\\begin{pmatrix}\n" + "0 & 0 & 0 & 0 \\\\\n" * 6 + "\\end{pmatrix}",
    "rows of zeros and ones": "\\begin{pmatrix}\n" + "0 & 1 & 0 & 1 \\\\\n" * 6 + "\\end{pmatrix}",
    "a decimal fraction": "1/3 = 0." + "3" * 80 + " and so on",
    "code with like lines": CODE,
    "cases one after another": CASES,
    "a phrase that a story repeats": (
        "In the first week of the year he saves $5. In the second week of the year he saves $7. By the end of "
        "the fifth week of the year he has $40, and by the tenth week of the year $90; for the rest of the year "
        "he saves nothing."
    ),
    "one matrix many times": "".join(f"{n} \\begin{{pmatrix}} 1 \\\\ -2 \\\\ 1 \\end{{pmatrix}} + " for n in range(12)),
    "counting": ", ".join(map(str, range(1, 300))),
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS.keys())
def test_loops_are_seen(text: str) -> None:
    assert has_repetition(text)


@pytest.mark.parametrize("text", NO_LOOPS.values(), ids=NO_LOOPS.keys())
def test_what_only_looks_alike_is_no_loop(text: str) -> None:
    assert not has_repetition(text)


def by_definition(text: str) -> bool:
    """Five equal phrases at equal distance with equal text between, tried in every place."""
    tail = text[-500:]
    for period in range(10, 123):
        for start in range(len(tail) - 4 * period - 10 + 1):
            cycle = tail[start : start + period]
            if len({c for c in cycle if c.isalnum()}) >= 3 and tail[start : start + 4 * period + 10] == (
                cycle * 4 + cycle[:10]
            ):
                return True
    return False


def test_the_fast_search_finds_what_trying_every_place_finds() -> None:
    numbers = random.Random(7)
    seen = set()
    for _ in range(120):
        phrase = "".join(numbers.choices("abcd -", k=numbers.randint(5, 130)))
        around = ["".join(numbers.choices("abcd -", k=numbers.randint(0, 60))) for _ in range(2)]
        times = numbers.randint(2, 12)
        text = around[0] + phrase * times + phrase[: numbers.randint(0, len(phrase))] + around[1]
        seen.add(found := by_definition(text))
        assert has_repetition(text) == found, text
    assert seen == {True, False}


TEXTS = {
    "nothing": "",
    "a correct solution": SOLUTION,
    "Chinese": "因此，答案是十八。我们可以验证这个结果：每天卖出九个鸡蛋，每个两美元。" * 5,
    "Chinese with symbols and a Russian name": "设αx和βy为整数，Δt为时间，由Иван证明。" * 8,
    "Japanese with kana, kanji and Latin": "したがって、答えは x = 18 です。カタカナも使うテキスト ABC。" * 5,
    "Russian": "Следовательно, ответ равен 18, при x → 0 и Δx = 3см." * 5,
    "Arabic": "إذن الجواب هو 18 دولارا في اليوم." * 6,
    "Hindi, whose vowels are marks": "इसलिए उत्तर 18 है और यह सही है। " * 6,
    "Thai": "ดังนั้นคำตอบคือ 18 ดอลลาร์ต่อวัน " * 6,
    "emoji, joined and coloured": "👩‍👩‍👧‍👦 👍🏽 ✅ 🇩🇪 " * 30,
    "LaTeX": LATEX_TABLE,
    "symbols of mathematics": "∀x∈ℝ: αx² + βx ≤ ∫₀^∞ 𝑓(𝑡)d𝑡 ⇒ ∂γ/∂x ≠ ℵ₀ ⊂ 𝔽ₚ " * 5,
    "code": CODE,
    "hexadecimal": "0x7f 0xde 0xad 0xbe 0xef \\x00\\x01\\x02 " * 8,
    "one cut emoji": SOLUTION + "\ufffd",
    "a few broken characters": (SOLUTION + "\ufffd" * 7) * 3,
    "two broken characters and nothing else": "\ufffd\ufffd",
    "white space": " \n\t\r" * 100,
    "a list of languages": "hello: Привет, 你好, مرحبا, שלום, नमस्ते, สวัสดี, γειά, 안녕하세요, გამარჯობა " * 2,
    "a loop of words": "Wait, let me check again. " * 20,
    "garbage long before the end": "\ufffd" * 300 + SOLUTION * 2,
}

GARBAGE = {
    "replacement characters": SOLUTION + "\ufffd" * 250,
    "broken bytes among letters": SOLUTION + "\ufffd\ufffda\ufffdk \ufffd\ufffd" * 40,
    "control characters": "\x00\x01\x02\x7f" * 60,
    "private use": "\ue000\uf8ff" * 100,
    "code points without a character": "\u0378\u0379" * 100,
    "half surrogates": "\ud800" * 200,
    "a soup of scripts": "ынaمرinkствоกม्नe랑обעב alizлияتمrieved ກงствιя요ngự " * 6,
    "a soup of four scripts": "наimمреtионสวmanสуt " * 8,
    "a short text that is nothing else": "\ufffd" * 12,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_text_of_any_kind_is_not_garbage(text: str) -> None:
    assert not has_garbage_tail(text)


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_seen(text: str) -> None:
    assert has_garbage_tail(text)


def test_both_take_under_a_millisecond_even_on_a_long_text() -> None:
    text = (CASES + MARKDOWN_TABLE + LATEX_TABLE) * 200
    for look in (has_repetition, has_garbage_tail):
        fastest = min(_seconds(look, text) for _ in range(20))
        assert fastest < 1e-3


def _seconds(look: object, text: str) -> float:
    start = time.perf_counter()
    look(text)  # type: ignore[operator]
    return time.perf_counter() - start
