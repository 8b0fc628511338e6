"""What `scripts/bench` runs: inferd's speed and size, against a bare libcurl loop and other harnesses in the same run.

    loads       the loads that are put on, each a row of the table
    goals       what each must reach, and the verdict on what came out
    suites      a load as a suite on disk, and as ready-made request bodies
    server      the endpoint that is asked: a process of its own
    counts      what that counts
    ideal       the shortest time that any client can take
    measuring   a child's CPU, memory and threads; what others took of the machine meanwhile
    runs        one run of inferd, one of the bare loop
    baseline    the bare loop: a process of its own
    rows        several runs of a load, alternating, as one row
    large       the rows of 1,000,000 tasks: memory, CPU a row, resume
    table       Markdown
    peers       other harnesses on the same prompts

docs/benchmarks.md says how to read what it prints.
"""
