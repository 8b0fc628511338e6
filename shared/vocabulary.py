"""The closed vocabularies of task files: a name that isn't here is refused when the task is read, before anything is
asked.

What each name does lives in `evald` (metrics/, post_process.py); a test holds that both sides name the same things.
"""

from __future__ import annotations

METRICS: frozenset[str] = frozenset({"exact_match", "accuracy", "f1", "bleu", "rouge_l"})

POST_PROCESS: frozenset[str] = frozenset(
    {
        "none",  # the answer as it is
        "strip",  # without white space around it
        "lower",  # stripped and lower-cased
        "first_line",  # the first line that isn't blank
        "last_line",  # the last line that isn't blank
        "first_number",  # the first number in the text, in one canonical form
        "last_number",  # the last number in the text, in one canonical form
        "gsm8k",  # the number after the last answer mark (`A:`, `####` ...); the last number where there is none
        "choice_letter",  # the letter of a multiple-choice answer, A to Z
        "yes_no",  # "yes" or "no"
    }
)

NUMERIC: frozenset[str] = frozenset({"first_number", "last_number", "gsm8k"})
"""Post-processes that compare numbers: their targets must hold one, which is checked when the task is read."""
