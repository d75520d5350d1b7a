from .sealing import Series as Series
from .sealing import StreamSealer as StreamSealer
from .sealing import seal_messages as seal_messages
