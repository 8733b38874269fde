/* CUDA's driver, libcuda.so.1, for the device of runtime.c: it says what Triton asks before it compiles. */
#include <cuda.h>
#include "device.h"

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    struct device one = pretended();
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = one.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = one.minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = one.processors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = SHARED_BY_DEFAULT; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = one.shared_per_block; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = REGISTERS; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = WARP; break;
    default: *value = 0; /* clocks and buses: for timings */
    }
    return CUDA_SUCCESS;
}

/* Triton's module is linked against these, and calls them where a kernel is loaded. None is. */
CUresult refused(void) { return CUDA_ERROR_NOT_SUPPORTED; }
#define REFUSED(name) __typeof__(name) name __attribute__((alias("refused")))
REFUSED(cuCtxGetCurrent);
REFUSED(cuCtxGetLimit);
REFUSED(cuCtxSetCurrent);
REFUSED(cuCtxSetLimit);
REFUSED(cuDevicePrimaryCtxRetain);
REFUSED(cuDriverGetVersion);
REFUSED(cuFuncGetAttribute);
REFUSED(cuFuncSetAttribute);
REFUSED(cuFuncSetCacheConfig);
REFUSED(cuGetErrorString);
REFUSED(cuModuleGetFunction);
REFUSED(cuModuleLoadData);
REFUSED(cuPointerGetAttribute);
