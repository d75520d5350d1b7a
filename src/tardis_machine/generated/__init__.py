"""Written by `make schema` from schemas/proto, never edited; `normalized_event.binpb` is the descriptor set, imports included."""
