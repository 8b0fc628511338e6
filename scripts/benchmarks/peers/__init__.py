"""Other harnesses on the same prompts, against the same server, in the same run.

pins.toml       what is installed for each, and at which version
environments    a virtual environment a peer, in the user's cache
drivers/        a script a peer, run by its own Python: `drive_<peer>.py PROMPTS URL WORKERS FOLDER`
race            each condition, one client after the other; the table
"""
