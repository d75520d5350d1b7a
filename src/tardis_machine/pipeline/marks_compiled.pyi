from .marks import merge_marked as merge_marked
