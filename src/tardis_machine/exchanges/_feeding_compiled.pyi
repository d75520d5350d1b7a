from ._feeding import feed_messages as feed_messages
from ._feeding import join_lines as join_lines
