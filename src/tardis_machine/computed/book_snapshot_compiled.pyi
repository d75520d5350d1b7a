from .book_snapshot import begin_snapshots as begin_snapshots
