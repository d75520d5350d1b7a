"""The commands of the program, a module each.

Invariant: nothing is imported for a command that does not run.
"""
