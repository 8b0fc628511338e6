"""A kit that breaks real things under a real inferd, and what must hold whatever breaks.

    shim.c, shim.py   calls of a process on one folder that fail or take long; its wall clock set
    disk.py           a small file system that can be filled up
    proxy.py          a TCP proxy that resets, refuses or swallows
    resolver.py       a DNS server that fails, and a process that asks it
    endpoint.py       the fake server with what it was asked on disk: restarted, stormy
    daemon.py         an inferd whose output is kept: killed, stopped, and what it has open
    ledger.py         who asked what and what was saved, by request
    scene.py          all that together, for one test
    soak.py           faults of every kind at random, for as long as one likes (`scripts/soak`); report.py tells of it
    means.py          what a machine must have for a fault, and what becomes of a test where it hasn't

What needs root or a compiler skips where there is none; in CI, the lack of a compiler is a failure.
"""
