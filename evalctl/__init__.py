"""The command line: checks, starts, shows and reports; and the Python API. The only package that imports all others."""

from evalctl.api import EvalReport, infer, run_eval

__all__ = ["EvalReport", "infer", "run_eval"]
