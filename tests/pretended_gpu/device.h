/* The device that is pretended: of the capability that PRETENDED_CAPABILITY names, with the figures of CUDA's programming
 * guide ("technical specifications per compute capability") for A100, RTX 3090, H100 and B200. */
#include <stdio.h>
#include <stdlib.h>

struct device { int major, minor, processors, shared_per_block; };

enum { SHARED_BY_DEFAULT = 48 << 10, RESERVED_SHARED = 1 << 10, REGISTERS = 1 << 16, WARP = 32, THREADS_PER_BLOCK = 1024,
       THREADS_PER_PROCESSOR = 2048 };

static struct device pretended(void) {
    const char *named = getenv("PRETENDED_CAPABILITY");
    struct device one = {0};
    if (!named || sscanf(named, "%d.%d", &one.major, &one.minor) != 2) {
        fputs("PRETENDED_CAPABILITY names no capability, such as 9.0\n", stderr);
        abort();
    }
    if (one.major == 8) {
        one.processors = one.minor ? 82 : 108;
        one.shared_per_block = (one.minor ? 99 : 163) << 10;
    } else {
        one.processors = one.major == 9 ? 132 : 148;
        one.shared_per_block = 227 << 10;
    }
    return one;
}
