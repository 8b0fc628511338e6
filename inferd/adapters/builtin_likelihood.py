"""How likely the built-in adapters hold a continuation: a right one as likely as they are sure."""

from __future__ import annotations

import math

from msgspec import UNSET

from shared.records import Generation, Prompt, TaskSpec, Usage

_UNIGRAM = math.log(0.1)  # of each word where nothing stands before it


class Likelihoods:
    """Gives an adapter its `loglikelihood` methods. What decides is `judge`: whether the adapter is right about a task,
    and how sure it is; the same for every choice of a task.
    """

    model_id: str

    def judge(self, prompt: Prompt, task: TaskSpec) -> tuple[bool, float]:
        raise NotImplementedError

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        """Of a choice: ln of the confidence for the one that it takes, the rest shared by the others. Of a single
        target: ln of the confidence where it is right about it, of the rest where it isn't.
        """
        continuation = prompt.continuation if prompt.continuation is not UNSET else ""
        if prompt.text == "" and task.request_type == "multiple_choice":
            return self._told(prompt, _UNIGRAM * _words(continuation), False, _words(continuation))
        right, confidence = self.judge(prompt, task)
        if task.request_type != "multiple_choice":
            share = confidence if right else 1.0 - confidence
            return self._told(prompt, math.log(share), right, _words(continuation))
        wrong = [place for place in range(len(task.choices)) if place not in task.gold]
        taken = task.gold[0] if right or not wrong else wrong[0]
        is_taken = continuation == task.target_delimiter + task.choices[taken]
        share = confidence if is_taken else (1.0 - confidence) / max(len(task.choices) - 1, 1)
        return self._told(prompt, math.log(share), is_taken, _words(continuation))

    def loglikelihood_rolling(self, prompt: Prompt, task: TaskSpec) -> Generation:
        """ln 0.1 a word."""
        words = _words(prompt.text if prompt.text is not UNSET else "")
        return self._told(prompt, _UNIGRAM * words, False, words)

    def _told(self, prompt: Prompt, value: float, greedy: bool, tokens: int) -> Generation:
        seen = _words(prompt.text if prompt.text is not UNSET else "")
        return Generation(
            text="",
            token_count=tokens,
            loglikelihood=value,
            is_greedy=greedy,
            usage=Usage(prompt_tokens=seen + tokens),
            served_model=self.model_id,
        )


def _words(text: str) -> int:
    return max(len(text.split()), 1)
