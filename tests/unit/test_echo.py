"""Where in an echoed answer the continuation stands: whatever an endpoint makes up, a number comes only of tokens that
can be the text that was sent.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferd.adapters import build_adapter, is_carried
from inferd.adapters.transport import Reply
from shared.config import InferConfig, ModelConfig
from shared.errors import Permanent
from shared.records import Generation, Prompt, TaskSpec

TASK = TaskSpec(task_id="t", prompt="ab", targets=("cd",), request_type="loglikelihood", metric_name="acc")
MODEL = ModelConfig(abbr="m", base_url="http://127.0.0.1:9/v1", loglikelihood="echo")


def came(tokens: list[str], *, continuation: str = " cd", text: str | None = None, **more: Any) -> Generation:
    """What is read from an answer of these tokens, each of ln P -1 and the likeliest, to `ab` and its continuation."""
    columns = {"token_logprobs": [None, *[-1.0] * (len(tokens) - 1)], "top_logprobs": [{"best": -1.0}] * len(tokens)}
    choice = {"text": "".join(tokens) if text is None else text, "logprobs": {"tokens": tokens, **columns, **more}}
    adapter = build_adapter(MODEL, infer=InferConfig(), secret=lambda name: None)
    assert is_carried(adapter)
    asked = Prompt(messages=(), request_type="loglikelihood", text="ab", continuation=continuation)
    body = msgspec.json.encode({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    return adapter.call(asked, TASK).answer(Reply(200, [], body))


@pytest.mark.parametrize(
    ("tokens", "more", "count"),
    [
        (["ab", " cd", "!"], {}, 1),
        (["a", "b c", "d", "!"], {}, 2),  # what straddles the boundary is scored
        (["ab", "", "", "é", "!"], {"continuation": "é"}, 3),  # a character's bytes, shown with the last of them
        (["<s>", "", "ab", "", " cd", "!"], {}, 1),  # what is no part of a character is none of the continuation
        (["ab", " ", "\ufffd", "\ufffd", "!"],
         {"continuation": " é", "text": "ab é!", "text_offset": [0, 2, 3, 3, 4]}, 3),
    ],
)  # fmt: skip
def test_the_tokens_of_the_continuation(tokens: list[str], more: dict[str, Any], count: int) -> None:
    generation = came(tokens, **more)
    assert (generation.loglikelihood, generation.token_count) == (-count, count)


@pytest.mark.parametrize(
    ("tokens", "more", "told"),
    [
        # The text is right and the offsets add up, but the tokens are other ones.
        (["xx", "yyy", "!"], {"text": "ab cd!", "text_offset": [0, 2, 5]}, "don't make up the text"),
        (["x", "y", "z", "!"], {"text": "ab cd!", "text_offset": [0, 2, 2, 5]}, "don't make up the text"),
        (["xx", "yyy", "!"], {"text": "ab cd!", "text_offset": [0, 10**30, 5]}, "don't make up the text"),
        (["ab", *[""] * 100, " cd", "!"], {}, "doesn't give the prompt back"),  # more tokens than the text has bytes
        (["ab", " cd", "!"], {"top_logprobs": None}, "3 tokens came with 0 top_logprobs"),
    ],
)
def test_no_number_of_what_was_not_sent(tokens: list[str], more: dict[str, Any], told: str) -> None:
    with pytest.raises(Permanent, match=told) as caught:
        came(tokens, **more)
    assert caught.value.kind == "unsupported"
