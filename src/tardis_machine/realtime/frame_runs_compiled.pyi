from .frame_runs import runs_before as runs_before
