"""The only exchange I/O: connections to live feeds, kept up, and what is heard on them as recorded lines."""
