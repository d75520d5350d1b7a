# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`marks` compiled: the same function, which copies what lies together in one go."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from tardis_machine._declarations cimport Mark

__all__ = ["merge_marked"]

cdef struct Source:
    const char *data
    # The next mark, and the end of all of them.
    const char *mark
    const char *end
    int64_t reached_us
    # When the next mark counts.
    int64_t next_us
    bint is_open


cdef inline void _look(Source *source) noexcept:
    cdef Mark mark
    if source.mark != source.end:
        # Nothing says that they are aligned.
        memcpy(&mark, source.mark, sizeof(Mark))
        source.next_us = max(mark.instant_us, source.reached_us)


def merge_marked(sources):
    """See `marks.merge_marked`."""
    cdef Py_ssize_t count = len(sources), place, best, size = 0, marks_size = 0
    cdef Source *all_sources = <Source *> calloc(count + 1, sizeof(Source))
    cdef Source *source
    cdef Source *chosen
    cdef const char *first
    cdef const char *first_mark
    cdef const unsigned char[::1] view
    cdef int64_t last_us = 0, messages = 0
    cdef bint is_stopped = False
    cdef Mark mark
    cdef bytes data, marks
    cdef char *at
    cdef char *mark_at
    # What the pointers lead to.
    cdef list held = []
    if all_sources == NULL:
        raise MemoryError
    try:
        for place, given in enumerate(sources):
            source = &all_sources[place]
            if len(given.data):
                view = given.data
                held.append(view)
                source.data = <const char *> &view[0] + <Py_ssize_t> given.read_bytes
                size += len(given.data) - given.read_bytes
            source.is_open, source.reached_us = given.is_open, given.reached_us
            if len(given.marks):
                view = given.marks
                held.append(view)
                source.mark = <const char *> &view[0] + <Py_ssize_t> given.read_marks
                source.end = <const char *> &view[0] + view.shape[0]
                marks_size += source.end - source.mark
            _look(source)
            is_stopped = is_stopped or (source.is_open and source.mark == source.end)
        data = PyBytes_FromStringAndSize(NULL, size)
        marks = PyBytes_FromStringAndSize(NULL, marks_size)
        at, mark_at = PyBytes_AS_STRING(data), PyBytes_AS_STRING(marks)
        while not is_stopped:
            best = -1
            for place in range(count):
                source = &all_sources[place]
                if source.mark != source.end and (best < 0 or source.next_us < all_sources[best].next_us):
                    best = place
            if best < 0:
                break
            chosen = &all_sources[best]
            # It goes on until another one comes first.
            first, first_mark = chosen.data, chosen.mark
            while chosen.mark != chosen.end:
                for place in range(count):
                    source = &all_sources[place]
                    if place == best or source.mark == source.end:
                        continue
                    if source.next_us < chosen.next_us or (source.next_us == chosen.next_us and place < best):
                        break
                else:
                    memcpy(&mark, chosen.mark, sizeof(Mark))
                    if mark.messages:
                        messages += mark.messages
                        last_us = mark.instant_us
                    chosen.data += mark.size
                    chosen.mark += sizeof(Mark)
                    chosen.reached_us = chosen.next_us
                    _look(chosen)
                    continue
                break
            memcpy(at, first, chosen.data - first)
            at += chosen.data - first
            memcpy(mark_at, first_mark, chosen.mark - first_mark)
            mark_at += chosen.mark - first_mark
            is_stopped = chosen.is_open and chosen.mark == chosen.end
        for place, given in enumerate(sources):
            source = &all_sources[place]
            if source.mark != NULL:
                given.read_marks = len(given.marks) - (source.end - source.mark)
                given.reached_us = source.reached_us
            if source.data != NULL:
                view = given.data
                given.read_bytes = source.data - <const char *> &view[0]
        return data[: at - PyBytes_AS_STRING(data)], marks[: mark_at - PyBytes_AS_STRING(marks)], messages, last_us
    finally:
        free(all_sources)
