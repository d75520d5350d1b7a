from ._feeding import feed_messages as feed_messages
