from .wire import delimited as delimited
from .wire import encode_timestamp as encode_timestamp
from .wire import varint as varint
