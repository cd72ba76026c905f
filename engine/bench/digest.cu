// A fingerprint of a buffer's bytes, one launch. Every thread runs a chain over its words in order, 128 bits of
// state, and the threads' states are folded pairwise: no sum, in which changes could be made to cancel out. What
// comes out is 64 bits of the last state, which does not say what that state was.

typedef unsigned long long u64;

struct State {
  u64 a, b;
};

__device__ __forceinline__ u64 turned(u64 value, int by) { return (value << by) | (value >> (64 - by)); }

__device__ __forceinline__ State mixed(State s, u64 word) {
  s.a = (s.a ^ word) * 0x9E3779B97F4A7C15ull;
  s.b = (s.b + turned(s.a, 29)) * 0xC2B2AE3D27D4EB4Full;
  s.a ^= s.b >> 31;
  return s;
}

__device__ __forceinline__ State folded(State left, State right) {
  return mixed(mixed(mixed(left, right.a), right.b), left.b ^ 0x165667B19E3779F9ull);
}

__device__ State of_block(State own, State* shared) {
  shared[threadIdx.x] = own;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = folded(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  return shared[0];
}

// blockDim.x is a power of two, at most 256. ``partial`` has gridDim.x states, ``arrived`` begins at zero and is
// zero again afterwards.
extern "C" __global__ void digest(const u64* words, u64 bytes, State* partial, unsigned* arrived, u64* out) {
  __shared__ State shared[256];
  __shared__ bool last;
  const u64 count = bytes / 8, step = u64(gridDim.x) * blockDim.x, first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  State state = {first + 0x27D4EB2F165667C5ull, bytes ^ 0x85EBCA77C2B2AE63ull};
  for (u64 at = first; at < count; at += step) state = mixed(state, words[at]);
  if (first == 0) {
    const unsigned char* tail = reinterpret_cast<const unsigned char*>(words + count);
    u64 rest = 0;
    for (u64 at = 0; at < bytes % 8; ++at) rest |= u64(tail[at]) << (8 * at);
    state = mixed(state, rest);
  }
  state = of_block(state, shared);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = state;
    __threadfence();
    last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  State rest = {threadIdx.x, gridDim.x};
  for (unsigned at = threadIdx.x; at < gridDim.x; at += blockDim.x) rest = folded(rest, partial[at]);
  rest = of_block(rest, shared);
  if (threadIdx.x == 0) {
    rest = mixed(mixed(rest, rest.b), rest.a);
    out[0] = rest.a ^ turned(rest.b, 17);
  }
}
