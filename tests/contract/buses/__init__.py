"""Each bus in front of its real service, for the conformance suite, the fault command and benchmarks: `buses/<prefix>.py`."""
