"""What a tokenizer's special tokens mean: which end a response, and which stay in its text."""

from collections.abc import Callable, Iterable

from answers.thoughts import last_tag, open_thought
from infra.errors import UserError, one_line

MARK = "1+1=2"  # a response that no chat template holds
TAIL = 8  # tokens at the end of a prompt, which may open a thought


def end_tokens(lm, tokenizer) -> list[int]:
    """Ids that end a response.

    These are the tokenizer's end token, those in the generation config, and the token that closes
    an assistant's turn in the chat template. Raises UserError if the template fails, for none, or
    for one that the model cannot choose, since a response would then rarely end.
    """
    configured = lm.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    known = {tokenizer.eos_token_id, turn_end(tokenizer), *ends} - {None}
    if not known:
        raise UserError(f"--model {tokenizer.name_or_path}: set eos_token_id, its end token's id")
    last, size = max(known), lm.config.get_text_config().vocab_size
    if last >= size:
        raise UserError(
            f"--model {tokenizer.name_or_path}: end token {last} ({tokenizer.decode(last)}) has no "
            f"row among the {size} of the head: call resize_token_embeddings, or take it out"
        )
    return sorted(known)


def turn_end(tokenizer) -> int | None:
    """The added token that closes an assistant's turn in the chat template, if there is one.

    As published, Qwen2.5's base models have <|im_end|> there and the end token <|endoftext|>. None
    if ordinary text follows the turn.
    """
    if not tokenizer.chat_template:
        return None
    chat = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": MARK}]
    trouble = "its chat template fails for a question and a response: mend or delete it"
    with one_line(tokenizer.name_or_path, trouble):
        rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    behind = tokenizer(rendered.partition(MARK)[2], add_special_tokens=False).input_ids
    visible = [token for token in behind if tokenizer.decode(token).strip()]
    return visible[0] if visible and visible[0] in tokenizer.added_tokens_decoder else None


def text_decoder(tokenizer) -> Callable[[list[int], Iterable[int]], str]:
    """The function from a prompt and a response, both token ids, to the response's text.

    Special tokens are left out, except tags of thought, which the graders need. If the prompt opens
    a thought, as the chat templates of some models do, the text begins with its tag.
    """
    left_out = set()
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special and last_tag(added.content) is None:
            left_out.add(token)

    def visible(tokens: Iterable[int]) -> str:
        return tokenizer.decode([int(token) for token in tokens if int(token) not in left_out])

    def text(prompt: list[int], response: Iterable[int]) -> str:
        return open_thought(visible(prompt[-TAIL:])) + visible(response)

    return text
