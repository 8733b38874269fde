/* Has the machine refuse one thing: the n-th thread, process, descriptor, map, allocation, lock or socket of a process.

   gcc -O2 -shared -fPIC -o shortage.so shortage.c -ldl; LD_PRELOAD=shortage.so program
   SHORT_OF names the kind and SHORT_AT the call that is refused, from 0, counted in each process from when SHORT_OF was set;
   SHORT_FOR: how many are refused from there on (1). SHORT_MARK is a file that is made when one is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LARGE 65536 /* allocations below are not counted: nobody can hold what Python does of them [bytes] */

static atomic_long n_calls = 0;
static char kind_now[32];
static __thread int inside = 0;

/* A program that a watched process runs has what it needs. */
__attribute__((constructor)) static void begin(void) { unsetenv("SHORT_OF"); }

/* Whether this call is to fail. */
static int refused(const char *kind) {
    if (inside) return 0;
    inside = 1;
    int result = 0;
    const char *watched = getenv("SHORT_OF");
    if (watched && !strcmp(watched, kind)) {
        if (strcmp(kind_now, watched)) {
            snprintf(kind_now, sizeof kind_now, "%s", watched);
            n_calls = 0;
        }
        long number = n_calls++;
        const char *at = getenv("SHORT_AT"), *more = getenv("SHORT_FOR");
        result = at && number >= atol(at) && number < atol(at) + (more ? atol(more) : 1);
        const char *mark = getenv("SHORT_MARK");
        if (result && mark) {
            int kept = errno, fd = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0644);
            if (fd >= 0) syscall(SYS_close, fd);
            errno = kept;
        }
    }
    inside = 0;
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    if (refused("thread")) return EAGAIN;
    return REAL(pthread_create)(thread, attributes, start, argument);
}

pid_t fork(void) {
    if (refused("process")) return errno = EAGAIN, -1;
    return REAL(fork)();
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const arguments[], char *const environment[]) {
    if (refused("process")) return EAGAIN;
    return REAL(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}

#define OPEN(name, first, folder)                                                                                      \
    int name(first const char *path, int flags, ...) {                                                                 \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                         \
        va_end(more);                                                                                                  \
        if (refused("descriptor")) return errno = EMFILE, -1;                                                          \
        return syscall(SYS_openat, folder, path, flags, mode);                                                         \
    }
#define NONE
#define FOLDER int folder,
OPEN(open, NONE, AT_FDCWD)
OPEN(open64, NONE, AT_FDCWD)
OPEN(openat, FOLDER, folder)
OPEN(openat64, FOLDER, folder)

int socket(int domain, int type, int protocol) {
    if (refused("socket")) return errno = ENOBUFS, -1;
    return syscall(SYS_socket, domain, type, protocol);
}

int flock(int fd, int operation) {
    if (refused("lock")) return errno = ENOLCK, -1;
    return syscall(SYS_flock, fd, operation);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t at) {
    if (fd >= 0 && refused("map")) return errno = ENOMEM, MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, at);
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t at) {
    return mmap(address, size, protection, flags, fd, at);
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    if (size >= LARGE && refused("memory")) return errno = ENOMEM, NULL;
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
    if (n * size >= LARGE && refused("memory")) return errno = ENOMEM, NULL;
    return __libc_calloc(n, size);
}
void *realloc(void *old, size_t size) {
    if (size >= LARGE && refused("memory")) return errno = ENOMEM, NULL;
    return __libc_realloc(old, size);
}
int posix_memalign(void **result, size_t alignment, size_t size) {
    if (size >= LARGE && refused("memory")) return ENOMEM;
    *result = __libc_memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}
