from tardis_machine._book cimport Book, Level, Side


cdef class OrderBook:
    cdef Book book
    cdef bint _removes_crossed
    cdef object _on_removed

    cdef int take(self, change) except -1
    cdef int _uncross(self, object asks) except -1


cdef object number_of(double number)
cdef bint is_absent(double amount) noexcept
cdef bint is_missing(double amount) noexcept
