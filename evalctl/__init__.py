"""The command line: checks, starts, shows and reports. The only package that imports all others."""
