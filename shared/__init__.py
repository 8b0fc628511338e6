"""The disk contract and the vocabulary: everything that `inferd`, `evald` and `evalctl` hold in common.

Imports neither daemon.
"""

__version__ = "0.1.0"
