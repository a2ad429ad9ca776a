"""A model's tokenizer and chat template."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError, first_line
from vase_cli.models.describe import loading_errors, location, quiet

T = TypeVar("T")
THINK_TAGS = ("<think>", "</think>")

Message: TypeAlias = Mapping[str, str]
"""One message of a chat: its "role" (system, user or assistant) and "content"."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it; ``thought_open`` says that it ends inside an open ``<think>``."""

    token_ids: tuple[int, ...]
    thought_open: bool


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_limit_s: float = 5.0) -> None:
        """Wrap transformers' tokenizer; a chat template that runs for longer than its limit is stopped."""
        self._tokenizer, self._template_limit_s = tokenizer, template_limit_s
        added = {token_id: str(token) for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        # Special tokens are no text, but thinking is.
        self._hidden = {token_id for token_id, token in added.items() if token not in THINK_TAGS}
        self._hides_all = len(self._hidden) == len(added)

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be turned into a prompt."""
        return bool(self._tokenizer.chat_template)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-text id; the generation config may name more."""
        end: int | None = self._tokenizer.eos_token_id
        return end

    def encode_text(self, text: str) -> Prompt:
        """A prompt taken as it is, without a chat template; the first token is not put before a text that has it."""
        begun = bool(self._tokenizer.bos_token) and text.startswith(str(self._tokenizer.bos_token))
        token_ids = self._tokenizer(text, add_special_tokens=not begun, verbose=False)["input_ids"]
        return Prompt(tuple(token_ids), text.rfind("<think>") > text.rfind("</think>"))

    def encode_chat(self, chat: str | Sequence[Message], *, system: str | None, think: bool) -> Prompt:
        """A user message, or the messages of a chat, through the chat template; ``system`` is put first if given.

        ModelError if the template refuses the messages, or there is none.
        """
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages += [{"role": "user", "content": chat}] if isinstance(chat, str) else map(dict, chat)
        try:
            text = _stopped_after(
                self._template_limit_s,
                lambda: self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
                ),
            )
        except Exception as error:  # the template is a program that came with the model
            raise ModelError(f"the model's chat template refused the messages: {first_line(error)}") from error
        token_ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        # Only the template can open a thought: a message may speak of <think> as it likes.
        return Prompt(tuple(token_ids), text.rstrip().endswith("<think>"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens (``<think>`` is text)."""
        shown = (
            list(token_ids) if self._hides_all else [token_id for token_id in token_ids if token_id not in self._hidden]
        )
        return str(
            self._tokenizer.decode(shown, skip_special_tokens=self._hides_all, clean_up_tokenization_spaces=False)
        )

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens too."""
        return [str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in token_ids]


def _stopped_after(limit_s: float, render: Callable[[], T]) -> T:
    """What ``render`` returns; TimeoutError, and an end of its work, if that takes longer."""
    done: list[T | BaseException] = []

    def run() -> None:
        try:
            done.append(render())
        except BaseException as error:
            done.append(error)

    worker = threading.Thread(target=run, name="chat template", daemon=True)
    worker.start()
    worker.join(limit_s)
    if worker.is_alive():  # a loop of Python code, which takes note of an exception from outside
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(TimeoutError))
        raise TimeoutError(f"it did not end within {limit_s:g} s")
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


class TextStream:
    """Turn token ids into text piece by piece; a character of several tokens comes whole."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = self._read = 0

    def add(self, token_id: int) -> str:
        """Return the text that this token makes certain."""
        self._ids.append(token_id)
        text = self._decode(self._ids[self._start :])
        return "" if text.endswith("\ufffd") else self._advance(text)

    def finish(self) -> str:
        """Return the rest, whole characters or not."""
        return self._advance(self._decode(self._ids[self._start :]))

    def _advance(self, text: str) -> str:
        # Decoded with the piece before it: some tokenizers write a token differently at the start of a text.
        new = text[len(self._decode(self._ids[self._start : self._read])) :]
        self._start, self._read = self._read, len(self._ids)
        return new


def load_tokenizer(entry: ModelEntry) -> ChatTokenizer:
    """Load the tokenizer alone: prompts are counted before weights are read. ModelError as in :func:`describe`."""
    with quiet(), loading_errors(entry):
        tokenizer = AutoTokenizer.from_pretrained(location(entry), revision=entry.revision, trust_remote_code=False)
        known = tokenizer("a")["input_ids"]
    if not known:  # what transformers makes of a folder without the files
        raise ModelError(f"{location(entry)}: no tokenizer there; add its files, such as tokenizer.json")
    return ChatTokenizer(tokenizer)
