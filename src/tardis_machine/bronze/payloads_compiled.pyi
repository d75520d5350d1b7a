from .payloads import encode_levels as encode_levels
