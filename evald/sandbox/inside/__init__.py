"""What runs inside a sandbox, with nothing but Python's standard library: the confinement that a process puts on itself
(confine), the program under test (solver), the tests (judge), and what the two say to each other (wire, peer).

These modules see no other part of Tandem; the folder is shown to the sandbox read-only, as the package `inside`.
"""
