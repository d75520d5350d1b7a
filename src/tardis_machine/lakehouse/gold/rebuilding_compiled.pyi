from .rebuilding import rebuild as rebuild
