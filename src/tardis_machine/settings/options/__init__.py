"""The options that are not a bus's own, a module for each thing that they configure. The buses declare theirs beside their code.

Invariant: plain data. Importing a module loads nothing but settings, as every `--help` reads all of them.
"""
