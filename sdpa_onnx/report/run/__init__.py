"""The report of a run: findings first, then tables, charts and environment; terminal and Markdown.

It combines the other report folders into one page.
Only the command line may import it.
"""
