from .frames import READS_ROWS as READS_ROWS
from .frames import to_json_frames as to_json_frames
from .frames import to_json_lines as to_json_lines
from .frames import to_marked_messages as to_marked_messages
from .frames import to_raw_frames as to_raw_frames
from .frames import to_raw_lines as to_raw_lines
