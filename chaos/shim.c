/* Loaded into a node by LD_PRELOAD: a wall clock that is wrong, syncs that take their time, syncs that fail.

   $CHAOS_SHIM names a file of `struct control`, which is shared with who commands it (chaos/shim.py). Only the wall
   clock is wrong; monotonic ones stay, as they do when somebody sets the clock of a machine. What waits until a moment
   of the wall clock gets that moment in the kernel's terms, as the kernel would have done it itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LONG_AGO 1000000000LL /* seconds: greater than any uptime, so a moment beyond is one of the wall clock */

struct control {
    int64_t offset;  /* of the wall clock, nanoseconds */
    int64_t delay;   /* of each sync, nanoseconds */
    int64_t failing; /* so many syncs fail from now on */
    int64_t asked;   /* the wall clock, while it was wrong */
    int64_t delayed; /* syncs */
    int64_t failed;  /* syncs */
};

static struct control nothing, *control = &nothing;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_SHIM");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        control = shared;
}

static int64_t get(int64_t *field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }
static void count(int64_t *field) { __atomic_fetch_add(field, 1, __ATOMIC_RELAXED); }

/* ---- the wall clock */

static void shift(struct timespec *moment, int64_t by) {
    int64_t rest = moment->tv_nsec + by % SECOND;
    moment->tv_sec += by / SECOND + (rest >= SECOND) - (rest < 0);
    moment->tv_nsec = rest + (rest < 0 ? SECOND : rest >= SECOND ? -SECOND : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real)
        real = REAL(clock_gettime);
    int status = real(clock, now);
    int64_t offset = get(&control->offset);
    if (!status && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        count(&control->asked);
        shift(now, offset);
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where)
        *where = exact.tv_sec;
    return exact.tv_sec;
}

static const struct timespec *in_kernel_terms(const struct timespec *moment, struct timespec *own) {
    int64_t offset = get(&control->offset);
    if (!offset || !moment || moment->tv_sec < LONG_AGO)
        return moment;
    *own = *moment;
    shift(own, -offset);
    return own;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static __typeof__(&pthread_cond_timedwait) real;
    struct timespec own;
    if (!real) {
        /* An older version of it, with another layout of the condition, may be the first to be found. */
        real = (__typeof__(&pthread_cond_timedwait))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!real)
            real = REAL(pthread_cond_timedwait);
    }
    return real(cond, mutex, in_kernel_terms(until, &own));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static __typeof__(&sem_timedwait) real;
    struct timespec own;
    if (!real)
        real = REAL(sem_timedwait);
    return real(semaphore, in_kernel_terms(until, &own));
}

/* ---- syncs */

/* 0 if the sync may go on. */
static int refuse(void) {
    int64_t delay = get(&control->delay);
    if (delay) {
        struct timespec rest = {delay / SECOND, delay % SECOND};
        count(&control->delayed);
        while (nanosleep(&rest, &rest) && errno == EINTR)
            ;
    }
    int64_t left = get(&control->failing);
    while (left > 0)
        if (__atomic_compare_exchange_n(&control->failing, &left, left - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            count(&control->failed);
            errno = EIO;
            return -1;
        }
    return 0;
}

#define SYNC(name, parameters, arguments)                                                                              \
    int name parameters { return refuse() ? -1 : REAL(name) arguments; }

SYNC(fsync, (int file), (file))
SYNC(fdatasync, (int file), (file))
SYNC(msync, (void *start, size_t size, int how), (start, size, how))
SYNC(syncfs, (int file), (file))
