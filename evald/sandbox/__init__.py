"""Runs programs that nobody trusts: in a sandbox that has passed its self-test, or not at all.

contract: what a sandbox is · bubblewrap, namespaces, unconfined: the back ends · watching: limits of time, output and
memory · trial: a program against its tests · self_test, choice: which back end is used · inside: what runs within.
docs/code-exec.md says what all this protects from, and what not.
"""
