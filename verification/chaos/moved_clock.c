/* Moves the wall clock of a process by an offset in seconds: the first eight bytes of the file $CHAOS_CLOCK.
 *
 * Preloaded (LD_PRELOAD), it changes the time of day that Python, the JVM and Spark's workers read. Monotonic clocks,
 * which they use for timeouts, stay unchanged.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset_s;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CHAOS_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *content = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (content != MAP_FAILED)
        offset_s = content;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (failed == 0 && offset_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (failed == 0 && now != NULL) {
        now->tv_sec = precise.tv_sec;
        now->tv_usec = precise.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *result)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result != NULL)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
