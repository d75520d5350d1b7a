/* Gives the program it is preloaded into a time of day that is wrong by as many seconds as a file says, from the moment the file says
   so. Clocks that never go back are left alone, and so is the machine's own; what is waited for until a time of day is waited for by
   the wrong clock too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* A deadline before that is one of a clock that counts from the machine's start. */
#define FIRST_DAY 1000000000

static const volatile int64_t none = 0;
static const volatile int64_t *seconds = &none;
static int (*true_gettime)(clockid_t, struct timespec *);
static int (*true_pthread_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*true_cnd_wait)(cnd_t *, mtx_t *, const struct timespec *);

static void *newest(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void map_seconds(void) {
    const char *path = getenv("STEPPING_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    true_pthread_wait = newest("pthread_cond_timedwait", "GLIBC_2.3.2");
    true_cnd_wait = dlsym(RTLD_NEXT, "cnd_timedwait");
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        seconds = page;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = true_gettime ? true_gettime(which, at) : (int)syscall(SYS_clock_gettime, which, at);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        at->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static struct timespec truly(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > FIRST_DAY)
        moved.tv_sec -= *seconds;
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock, const struct timespec *restrict until) {
    struct timespec moved = truly(until);
    return true_pthread_wait(condition, lock, &moved);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict lock, const struct timespec *restrict until) {
    struct timespec moved = truly(until);
    return true_cnd_wait(condition, lock, &moved);
}
