/* Preloaded into a process (LD_PRELOAD), makes its calls on the files under one folder fail or take long, and sets
 * its wall clock. TANDEM_FAULTS names the file that steers it, TANDEM_FAULTS_UNDER the folder. shim.py knows the same
 * block.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WRITE, SYNC, RENAME, TRUNCATE, CREATE, CALLS };

struct call {
    int32_t error;    /* errno that it fails with; 0: none */
    int32_t times;    /* how often it still fails; -1: always */
    int32_t torn;     /* a write that fails has written the first half */
    int32_t delay_ms; /* how long it takes */
    int32_t failed, entered, left; /* how often it failed; calls that were delayed: begun, over */
};

struct block {
    struct call calls[CALLS];
    int32_t clock;    /* seconds that are added to the wall clock */
    char only[64];    /* part of the path that a call must have; empty: any */
};

static struct block *shared;
static char under[4096];
static size_t under_length;

#define NEXT(name)                                                                                                     \
    static __typeof__(&name) next;                                                                                     \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("TANDEM_FAULTS"), *folder = getenv("TANDEM_FAULTS_UNDER");
    if (!file || !folder || strlen(folder) >= sizeof under) return;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof(struct block), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    strcpy(under, folder);
    under_length = strlen(under);
    shared = map;
}

static int concerns(const char *path) {
    return strncmp(path, under, under_length) == 0 && (!shared->only[0] || strstr(path, shared->only));
}

static int concerns_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return concerns(path);
}

/* Whether the call shall fail (errno is set then), after what it was told to take. */
static int fails(int which, const char *path, int fd) {
    if (!shared) return 0;
    struct call *call = &shared->calls[which];
    if (!call->error && !call->delay_ms) return 0;
    int saved = errno;
    int mine = path ? concerns(path) : concerns_fd(fd);
    errno = saved;
    if (!mine) return 0;
    if (call->delay_ms) {
        __atomic_add_fetch(&call->entered, 1, __ATOMIC_SEQ_CST);
        for (int waited = 0; waited < call->delay_ms; waited += 10) usleep(10000); /* ends early when it is healed */
        __atomic_add_fetch(&call->left, 1, __ATOMIC_SEQ_CST);
    }
    int error = call->error;
    if (!error) return 0;
    int times = __atomic_load_n(&call->times, __ATOMIC_SEQ_CST);
    while (times > 0 && !__atomic_compare_exchange_n(&call->times, &times, times - 1, 0, __ATOMIC_SEQ_CST,
                                                     __ATOMIC_SEQ_CST))
        ;
    if (times == 0) return 0;
    __atomic_add_fetch(&call->failed, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return 1;
}

ssize_t write(int fd, const void *data, size_t length) {
    NEXT(write);
    if (fails(WRITE, NULL, fd)) {
        int error = errno;
        if (shared->calls[WRITE].torn && length > 1 && next(fd, data, length / 2) < 0) return -1;
        errno = error;
        return -1;
    }
    return next(fd, data, length);
}

int fsync(int fd) {
    NEXT(fsync);
    return fails(SYNC, NULL, fd) ? -1 : next(fd);
}

int fdatasync(int fd) {
    NEXT(fdatasync);
    return fails(SYNC, NULL, fd) ? -1 : next(fd);
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails(RENAME, to, -1) ? -1 : next(from, to);
}

int ftruncate(int fd, off_t length) {
    NEXT(ftruncate);
    return fails(TRUNCATE, NULL, fd) ? -1 : next(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    NEXT(ftruncate64);
    return fails(TRUNCATE, NULL, fd) ? -1 : next(fd, length);
}

static int mode_of(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; }

int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    return flags & O_CREAT && fails(CREATE, path, -1) ? -1 : next(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    NEXT(open64);
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    return flags & O_CREAT && fails(CREATE, path, -1) ? -1 : next(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    NEXT(clock_gettime);
    int result = next(clock, time);
    if (result == 0 && shared && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += shared->clock;
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    NEXT(gettimeofday);
    int result = next(time, zone);
    if (result == 0 && shared) time->tv_sec += shared->clock;
    return result;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

/* A moment reckoned by the wall clock as set here, told to a kernel that knows nothing of that. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    NEXT(pthread_cond_timedwait);
    struct timespec moment = *until;
    if (shared && shared->clock && labs(until->tv_sec - time(NULL)) < 1000000) moment.tv_sec -= shared->clock;
    return next(condition, mutex, &moment);
}
