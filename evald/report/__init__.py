"""The report as people read it: Markdown, CSV, and a table on a terminal. Pure: a Report goes in, text comes out.

Names and reasons come from files and models, so they are made harmless for each form.
"""
