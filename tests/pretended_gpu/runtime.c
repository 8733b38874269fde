/* CUDA's runtime as torch calls it, for a device that computes nothing. Loaded before libcudart (LD_PRELOAD): what is
 * defined here is answered here, and what is not finds no device and says so.
 *
 * Fake tensors need a device that exists and has properties, a stream and a generator. Constants of the host that are
 * copied to it are real: its memory is the host's. */
#include <cuda_runtime_api.h>
#include <string.h>
#include "device.h"

cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
    struct device one = pretended();
    memset(of, 0, sizeof *of);
    strcpy(of->name, "pretended GPU");
    of->major = one.major;
    of->minor = one.minor;
    of->multiProcessorCount = one.processors;
    of->sharedMemPerBlock = SHARED_BY_DEFAULT;
    of->sharedMemPerBlockOptin = one.shared_per_block;
    of->sharedMemPerMultiprocessor = one.shared_per_block + RESERVED_SHARED;
    of->regsPerBlock = of->regsPerMultiprocessor = REGISTERS;
    of->warpSize = WARP;
    of->maxThreadsPerBlock = THREADS_PER_BLOCK;
    of->maxThreadsPerMultiProcessor = THREADS_PER_PROCESSOR;
    of->totalGlobalMem = (size_t)80 << 30;
    of->l2CacheSize = 40 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaMalloc(void **memory, size_t size) {
    *memory = malloc(size);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *memory) { free(memory); return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    memcpy(to, from, size);
    return cudaSuccess;
}
