"""What helps a user type a command: the layout of `--help`, its examples, messages of misuse, shell completion.

No command and no option belongs here. Imports nothing heavy: `--help` is fast.
"""
