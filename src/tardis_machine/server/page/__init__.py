"""The page: what a browser shows of this machine at `/`.

Invariant: the page knows nothing that its server's own routes do not tell it. Its files are served as they are, to anyone, as there is
nothing secret in them; what it shows is asked for with the token where there is one.
"""
