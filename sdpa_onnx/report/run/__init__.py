"""The report of a run: findings first, then tables, charts, environment; terminal and Markdown.

Joins the other report folders to one page.
Nothing may import it but the command line and `sweep`.
"""
