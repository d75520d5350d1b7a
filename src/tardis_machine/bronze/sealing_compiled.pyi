from .sealing import EventNumbering as EventNumbering
from .sealing import StreamSealer as StreamSealer
from .sealing import seal_messages as seal_messages
