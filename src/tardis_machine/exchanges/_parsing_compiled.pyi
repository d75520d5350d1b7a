from ._parsing import levels as levels
from ._parsing import levels_as_sent as levels_as_sent
from ._parsing import levels_by_side as levels_by_side
from ._parsing import timestamp_from_ms as timestamp_from_ms
from ._parsing import timestamp_from_text as timestamp_from_text
from ._parsing import to_number as to_number
from ._parsing import verbatim as verbatim
