from ._decoding import decode_lines as decode_lines
from ._decoding import decode_messages as decode_messages
