"""Finds the tags around a model's thoughts, in which no answer or program counts."""

import re

# <think>, </think>, <|begin_of_thought|>, <|END_THINKING|>, <seed:think>, ◁/think▷, [/THINK];
# <|channel>thought, <channel|>; <|channel|>analysis, <|channel|>final; <|inner_prefix|> (Apertus).
# Only tags that close a thought set a group.
TAG = re.compile(
    r"[<◁](?=[/|\w])(/)?\|?(?i:(?:(?!end_)\w{1,9}?[:_])?(?:begin_of_|start_|(end_(?:of_)?))?"
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|scratchpad))\|?[>▷]"
    r"(?!`|\s(?:and\s[`<]|tags?\b|tokens?\b|blocks?\b))|\[(/)?THINK\]"  # not "<think> tags"
    r"|<\|channel>\w*|<(channel)\|>|<\|channel\|>(?:(final)|\w*)|<\|inner_(?:prefix|(suffix))\|>"
)


def last_tag(text: str) -> re.Match | None:
    """The last tag of thought in a text; any of its groups is set if it closes the thought."""
    return max(TAG.finditer(text), key=re.Match.start, default=None)


def without_thoughts(response: str) -> str:
    """The text after the last thought; empty if it is not closed."""
    tag = last_tag(response)
    if tag is None:
        return response
    return response[tag.end() :] if any(tag.groups()) else ""


def open_thought(prompt: str) -> str:
    """The tag that opens a thought at the end of a prompt, or an empty text."""
    tag = last_tag(prompt)
    is_open = tag is not None and not any(tag.groups()) and not prompt[tag.end() :].strip()
    return tag[0] if is_open else ""
