/* Writes down every operation on files below a folder, in order, of all processes that this is preloaded into.

   gcc -O2 -shared -fPIC -o trace.so trace.c; TRACE_ROOT=folder TRACE_FILE=file LD_PRELOAD=trace.so program
   tests/faults/disk.py reads the file, and makes of it what a disk may hold after a power cut.

   A file is known by its inode, so that what is written to a descriptor is written to it under any name. Stores to
   mapped memory and what the C library writes for its own streams (fwrite) do not come by here. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static pid_t log_pid = 0;
static __thread int inside = 0;

/* The operations of all processes one after the other: each is in the file before another one can see it. */
static void lock(void) {
    pthread_mutex_lock(&mutex);
    inside = 1;
    if (log_pid != getpid()) { /* after a fork a descriptor of its own, or the lock would be shared */
        log_fd = syscall(SYS_openat, AT_FDCWD, getenv("TRACE_FILE"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        log_pid = getpid();
    }
    flock(log_fd, LOCK_EX);
}

static void unlock(void) {
    int kept = errno;
    flock(log_fd, LOCK_UN);
    inside = 0;
    pthread_mutex_unlock(&mutex);
    errno = kept;
}

static void note(char op, uint64_t id, int64_t at, const char *path, const char *other, const void *data, size_t n) {
    uint32_t sizes[3] = {path ? strlen(path) : 0, other ? strlen(other) : 0, n};
    size_t total = 1 + sizeof id + sizeof at + sizeof sizes + sizes[0] + sizes[1] + n;
    char *record = malloc(total), *end = record;
    *end++ = op;
    memcpy(end, &id, sizeof id), end += sizeof id;
    memcpy(end, &at, sizeof at), end += sizeof at;
    memcpy(end, sizes, sizeof sizes), end += sizeof sizes;
    memcpy(end, path, sizes[0]), end += sizes[0];
    memcpy(end, other, sizes[1]), end += sizes[1];
    memcpy(end, data, n);
    if (syscall(SYS_write, log_fd, record, total) != (long)total) abort();
    free(record);
}

/* The absolute path, where it lies below the folder; else NULL. */
static const char *below(int folder, const char *path, char *out) {
    const char *root = getenv("TRACE_ROOT");
    if (inside || !root || !*root || !path) return NULL;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char link[64], start[PATH_MAX];
        if (folder == AT_FDCWD) {
            if (!getcwd(start, sizeof start)) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t n = readlink(link, start, sizeof start - 1);
            if (n < 0) return NULL;
            start[n] = 0;
        }
        if (!strcmp(path, ".")) snprintf(out, PATH_MAX, "%s", start);
        else if (snprintf(out, PATH_MAX, "%s/%s", start, path) >= PATH_MAX) return NULL;
    }
    size_t n = strlen(root);
    return strncmp(out, root, n) == 0 && (out[n] == '/' || !out[n]) ? out : NULL;
}

/* The inode of a descriptor of a file or folder below; else 0. */
static uint64_t inode(int fd) {
    char link[64], path[PATH_MAX], out[PATH_MAX];
    if (inside || !getenv("TRACE_ROOT") || fd < 0) return 0;
    int kept = errno;
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (n <= 0 || path[0] != '/') return 0;
    path[n] = 0;
    if (!below(AT_FDCWD, path, out) || fstat(fd, &status)) return 0;
    return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ? status.st_ino : 0;
}

static uint64_t inode_at(const char *path) {
    struct stat status;
    return lstat(path, &status) ? 0 : status.st_ino;
}

/* ---- names */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    char out[PATH_MAX];
    int changes = flags & (O_CREAT | O_TRUNC);
    const char *where = changes ? below(folder, path, out) : NULL;
    if (!where) return syscall(SYS_openat, folder, path, flags, mode);
    lock();
    uint64_t before = inode_at(where);
    int fd = syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0) {
        if (!before) note('C', inode_at(where), 0, where, NULL, NULL, 0);
        else if (flags & O_TRUNC) note('T', before, 0, NULL, NULL, NULL, 0);
    }
    unlock();
    return fd;
}

#define OPEN(name, first, folder)                                                                                      \
    int name(first const char *path, int flags, ...) {                                                                 \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                         \
        va_end(more);                                                                                                  \
        return open_at(folder, path, flags, mode);                                                                     \
    }
#define NONE
#define FOLDER int folder,
OPEN(open, NONE, AT_FDCWD)
OPEN(open64, NONE, AT_FDCWD)
OPEN(openat, FOLDER, folder)
OPEN(openat64, FOLDER, folder)

int renameat(int from, const char *old, int to, const char *new) {
    char a[PATH_MAX], b[PATH_MAX];
    const char *one = below(from, old, a), *other = below(to, new, b);
    if (!one && !other) return syscall(SYS_renameat2, from, old, to, new, 0);
    lock();
    int result = syscall(SYS_renameat2, from, old, to, new, 0);
    if (!result) note('R', 0, 0, one ? one : old, other ? other : new, NULL, 0);
    unlock();
    return result;
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int unlinkat(int folder, const char *path, int flags) {
    char out[PATH_MAX];
    const char *where = below(folder, path, out);
    if (!where) return syscall(SYS_unlinkat, folder, path, flags);
    lock();
    int result = syscall(SYS_unlinkat, folder, path, flags);
    if (!result) note('U', 0, 0, where, NULL, NULL, 0);
    unlock();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    int result = unlink(path);
    return result && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int folder, const char *path, mode_t mode) {
    char out[PATH_MAX];
    const char *where = below(folder, path, out);
    if (!where) return syscall(SYS_mkdirat, folder, path, mode);
    lock();
    int result = syscall(SYS_mkdirat, folder, path, mode);
    if (!result) note('M', inode_at(where), 0, where, NULL, NULL, 0);
    unlock();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char a[PATH_MAX], b[PATH_MAX];
    const char *one = below(from, old, a), *other = below(to, new, b);
    if (!other) return syscall(SYS_linkat, from, old, to, new, flags);
    lock();
    int result = syscall(SYS_linkat, from, old, to, new, flags);
    if (!result) note('L', inode_at(other), 0, one ? one : old, other, NULL, 0);
    unlock();
    return result;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *target, int folder, const char *path) {
    char out[PATH_MAX];
    const char *where = below(folder, path, out);
    if (!where) return syscall(SYS_symlinkat, target, folder, path);
    lock();
    int result = syscall(SYS_symlinkat, target, folder, path);
    if (!result) note('S', inode_at(where), 0, where, target, NULL, 0);
    unlock();
    return result;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

/* ---- contents */

ssize_t write(int fd, const void *data, size_t n) {
    uint64_t id = inode(fd);
    if (!id) return syscall(SYS_write, fd, data, n);
    lock();
    ssize_t written = syscall(SYS_write, fd, data, n);
    if (written > 0) note('W', id, lseek(fd, 0, SEEK_CUR) - written, NULL, NULL, data, written);
    unlock();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    uint64_t id = inode(fd);
    if (!id) return syscall(SYS_pwrite64, fd, data, n, at);
    lock();
    ssize_t written = syscall(SYS_pwrite64, fd, data, n, at);
    if (written > 0) note('W', id, at, NULL, NULL, data, written);
    unlock();
    return written;
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { return pwrite(fd, data, n, at); }

ssize_t writev(int fd, const struct iovec *parts, int n_parts) {
    if (!inode(fd)) return syscall(SYS_writev, fd, parts, n_parts);
    ssize_t total = 0;
    for (int i = 0; i < n_parts; i++) {
        if (!parts[i].iov_len) continue;
        ssize_t written = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total ? total : written;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}

/* Copies between descriptors in the kernel: as a read and a write. */
ssize_t sendfile(int to, int from, off_t *at, size_t n) {
    if (!inode(to)) return syscall(SYS_sendfile, to, from, at, n);
    size_t most = n < (1 << 20) ? n : 1 << 20;
    char *buffer = malloc(most);
    ssize_t got = at ? pread(from, buffer, most, *at) : read(from, buffer, most);
    ssize_t written = got > 0 ? write(to, buffer, got) : got;
    if (at && written > 0) *at += written;
    free(buffer);
    return written;
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t n) { return sendfile(to, from, at, n); }
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags) {
    if (!inode(to)) return syscall(SYS_copy_file_range, from, a, to, b, n, flags);
    errno = EXDEV; /* every caller has another way */
    return -1;
}

int ftruncate(int fd, off_t size) {
    uint64_t id = inode(fd);
    if (!id) return syscall(SYS_ftruncate, fd, size);
    lock();
    int result = syscall(SYS_ftruncate, fd, size);
    if (!result) note('T', id, size, NULL, NULL, NULL, 0);
    unlock();
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    char out[PATH_MAX];
    const char *where = below(AT_FDCWD, path, out);
    if (!where) return syscall(SYS_truncate, path, size);
    lock();
    int result = syscall(SYS_truncate, path, size);
    if (!result) note('T', inode_at(where), size, NULL, NULL, NULL, 0);
    unlock();
    return result;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

static int sync_one(int fd, long call) {
    uint64_t id = inode(fd);
    if (!id) return syscall(call, fd);
    lock();
    int result = syscall(call, fd);
    if (!result) note('F', id, 0, NULL, NULL, NULL, 0);
    unlock();
    return result;
}
int fsync(int fd) { return sync_one(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_one(fd, SYS_fdatasync); }
