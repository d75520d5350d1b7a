"""Real servers for tests, each a process of its own on a free port."""
