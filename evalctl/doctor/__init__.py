"""`evalctl doctor`: tests the mount that a work_dir lies on, alone or with a second host, and says what follows.

Each check does what Tandem itself does there (replace, append, claim, list), in a folder of its own under the work_dir,
which is removed at the end; what it measures is told with the setting or the remedy that follows. `alone` has the
checks of one host, `peer` those of two, `judge` turns what two hosts measured into findings, `mount` reads how the
folder is mounted.
"""

from evalctl.doctor.command import main

__all__ = ["main"]
