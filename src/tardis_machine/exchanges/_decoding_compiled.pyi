from ._decoding import decode_lines as decode_lines
