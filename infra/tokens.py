"""Without this file the turns of a chat would not end, and thoughts would be read as answers.

It knows which special tokens of a tokenizer end a response, and which stay in its text.
"""

import json
from collections.abc import Callable, Iterable

import torch

from answers.thoughts import last_tag, open_thought
from infra.errors import UserError, one_line

MARK = "1+1=2"  # a response that no chat template contains
TAIL = 8  # tokens at the end of a prompt, which may open a thought


def end_tokens(lm, tokenizer) -> list[int]:
    """Ids that end a response.

    These are the tokenizer's end token, those in the generation config, and the token that closes
    an assistant's turn in the chat template. Raises UserError for none.
    """
    configured = lm.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    known = {tokenizer.eos_token_id, turn_end(tokenizer), *ends} - {None}
    if not known:
        raise UserError(f"--model {tokenizer.name_or_path} has no end token: set eos_token_id")
    return sorted(known)


def turn_end(tokenizer) -> int | None:
    """The added token that closes an assistant's turn in the chat template, if there is one.

    As published, Qwen2.5's base models have <|im_end|> there, but <|endoftext|> as the end token.
    Returns None if ordinary text follows the turn.
    """
    if not tokenizer.chat_template:
        return None
    chat = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": MARK}]
    with one_line(tokenizer.name_or_path, "its chat template fails at an assistant's turn"):
        rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    behind = tokenizer(rendered.partition(MARK)[2], add_special_tokens=False).input_ids
    visible = [token for token in behind if tokenizer.decode(token).strip()]
    return visible[0] if visible and visible[0] in tokenizer.added_tokens_decoder else None


def stop_texts(flag: str) -> tuple[str, ...]:
    r"""The texts of --stop: one, or a JSON list. A typed `\n` is a line break. Raises UserError."""
    if not flag.startswith("["):
        return (flag.replace("\\n", "\n"),) if flag else ()
    try:
        texts = json.loads(flag)
    except json.JSONDecodeError:
        texts = []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f'--stop {flag} is not a JSON list of texts, such as ["[/INST]", "Q:"]')
    return tuple(texts)


def stop_finder(tokenizer, stop: tuple[str, ...]) -> Callable[[torch.Tensor, torch.Tensor], int]:
    """The function from a response's earlier and new tokens to the end of a stop text.

    It returns how many of the new tokens there are up to the one that completes the text, else 0.
    Of the earlier tokens only the last are decoded again, as a token has one byte of text or more.
    """
    before = max((len(text.encode()) for text in stop), default=0) + 8  # 8 may have no text

    def has_stop(tokens: list[int]) -> bool:
        text = tokenizer.decode(tokens)
        return any(each in text for each in stop)

    def at_stop(earlier: torch.Tensor, new: torch.Tensor) -> int:
        old, new = earlier[-before:].tolist(), new.tolist()
        if not has_stop(old + new):
            return 0
        return next(i for i in range(1, len(new) + 1) if has_stop(old + new[:i]))

    return at_stop


def text_decoder(
    tokenizer, stop: tuple[str, ...] = ()
) -> Callable[[list[int], Iterable[int]], str]:
    """The function from a prompt and a response, both token ids, to the response's text.

    Special tokens are left out, except tags of thought, which the graders need. If the prompt opens
    a thought, as the chat templates of some models do, the text begins with its tag. The text ends
    before the first of the `stop` texts.
    """
    left_out = set()
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special and last_tag(added.content) is None:
            left_out.add(token)

    def visible(tokens: Iterable[int]) -> str:
        return tokenizer.decode([int(token) for token in tokens if int(token) not in left_out])

    def text(prompt: list[int], response: Iterable[int]) -> str:
        shown = visible(response)
        shown = shown[: min((shown.find(each) for each in stop if each in shown), default=None)]
        return open_thought(visible(prompt[-TAIL:])) + shown

    return text
