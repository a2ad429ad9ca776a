"""A model's tokenizer and chat template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError, first_line
from vase_cli.models.describe import loading_errors, location, quiet

Message: TypeAlias = Mapping[str, str]
"""One message of a chat: its "role" (system, user or assistant) and "content"."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it; ``thought_open`` says that it ends inside an open ``<think>``."""

    token_ids: tuple[int, ...]
    thought_open: bool


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

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
        """A prompt taken as it is, without a chat template."""
        return Prompt(tuple(self._tokenizer(text)["input_ids"]), text.rfind("<think>") > text.rfind("</think>"))

    def encode_chat(self, chat: str | Sequence[Message], *, system: str | None, think: bool) -> Prompt:
        """A user message, or the messages of a chat, through the chat template; ``system`` is put first if given.

        ModelError if there is no chat template, or it refuses the messages.
        """
        if not self.has_chat_template:
            raise ModelError("this model's tokenizer has no chat template: use --raw to give the prompt as it is")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages += [{"role": "user", "content": chat}] if isinstance(chat, str) else map(dict, chat)
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
            )
        except Exception as error:  # the template is a program that came with the model
            raise ModelError(f"the model's chat template refused the messages: {first_line(error)}") from error
        token_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        # Only the template can open a thought: a message may speak of <think> as it likes.
        return Prompt(tuple(token_ids), text.rstrip().endswith("<think>"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens (``<think>`` is text)."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens too."""
        return [str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in token_ids]


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
        return ChatTokenizer(
            AutoTokenizer.from_pretrained(location(entry), revision=entry.revision, trust_remote_code=False)
        )
