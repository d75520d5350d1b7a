from .envelope import read_envelopes as read_envelopes
