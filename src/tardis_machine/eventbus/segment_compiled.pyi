from .segment import encode_events as encode_events
